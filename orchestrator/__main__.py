"""The programs `orchestrator` and `python -m orchestrator`."""

import sys


def main() -> int:
    """Run the command line and return the exit code."""
    try:
        # Imported here, so that a Ctrl-C while Python still reads the code ends it as any other.
        from orchestrator.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT; to import what says so takes time too


if __name__ == "__main__":
    sys.exit(main())
