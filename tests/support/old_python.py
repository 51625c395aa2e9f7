"""A program that is Python as far as `-c` goes, and says that it is an old one."""

from __future__ import annotations

import sys
from pathlib import Path

_SCRIPT = """\
#!{python}
import sys
sys.version_info = (3, 8, 10)
text, sys.argv = sys.argv[2], ["-c", *sys.argv[3:]]
exec(text)
"""


def write_old_python(path: Path) -> str:
    """Write the program and return its path."""
    path.write_text(_SCRIPT.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)
