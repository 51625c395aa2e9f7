"""Write what `orchestrator setup` installs: orchestrator/setup/pins.json.

Usage: ``python -m tools.pins``. The ranges are those of pyproject.toml, the exact versions those of
constraints.txt; a wheel has neither file, so both go along inside the package.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "orchestrator" / "setup" / "pins.json"


def pins_text(root: Path) -> str:
    """Return the file's text, made from the two sources below ``root``."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = {
        "python": project["requires-python"],
        "requires": project["dependencies"],
        "constraints": [line for line in lines if line and not line.startswith("#")],
        "scripts": project["scripts"],
    }
    return json.dumps(pins, indent=2) + "\n"


def main() -> int:
    """Write the file."""
    PINS.write_text(pins_text(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
