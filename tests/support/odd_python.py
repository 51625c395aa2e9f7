"""Interpreters that are not what they should be: scripts that run Python after a change to it."""

from __future__ import annotations

import sys
from pathlib import Path

# The boot text and its arguments, as `PYTHON -c BOOT NONCE` gives them.
_RUN = "boot = sys.argv[2]; sys.argv = ['-c', *sys.argv[3:]]; exec(boot)"
OLD = "sys.version_info = (3, 8, 10, 'final', 0)"
WITHOUT_ENSUREPIP = "sys.modules['ensurepip'] = None"


def odd_python(path: Path, change: str) -> Path:
    """Write an interpreter that runs `change` first; its version is told by `sys` alone."""
    path.write_text(f"#!{sys.executable}\nimport sys, time\n{change}\n{_RUN}\n")
    path.chmod(0o755)
    return path


def skewed(seconds: int) -> str:
    """Return the change for a clock that is ahead."""
    return f"real = time.time_ns; time.time_ns = lambda: real() + {seconds} * 10**9"
