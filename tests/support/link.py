"""Stand in for an ssh client: run a command in a session of its own and carry its three pipes.

Usage: `python -S link.py COMMAND…`. Killing this process cuts both ends apart; the command sees
the end of its stdin and its starter the end of everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def carry(from_fd: int, to_fd: int) -> None:
    """Move bytes until one end is closed."""
    try:
        while chunk := os.read(from_fd, 1 << 16):
            while chunk:
                chunk = chunk[os.write(to_fd, chunk) :]
    except OSError:
        pass  # The other end is gone, and with it the need.
    finally:
        os.close(to_fd)


def main() -> int:
    """Run the command and return its exit code, as a shell tells it."""
    stdin_read, stdin_write = os.pipe()
    stdout_read, stdout_write = os.pipe()
    command = subprocess.Popen(
        sys.argv[1:], stdin=stdin_read, stdout=stdout_write, start_new_session=True
    )
    os.close(stdin_read)
    os.close(stdout_write)
    threading.Thread(target=carry, args=(0, stdin_write), daemon=True).start()
    carry(stdout_read, 1)
    code = command.wait()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    os._exit(main())
