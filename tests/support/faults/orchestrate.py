"""The orchestrator's command line with shorter deadlines: `orchestrate.py '{"op_s": 2}' run …`.

The deadlines are no options, so their defaults are changed before anything uses them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from orchestrator.cli import main
from orchestrator.timeouts import Timeouts


def shorten(deadlines_s: dict[str, float]) -> None:
    """Change defaults of `Timeouts`."""
    make: Any = Timeouts.__init__
    make.__kwdefaults__.update(deadlines_s)


if __name__ == "__main__":
    shorten(json.loads(sys.argv[1]))
    sys.argv = ["orchestrator", *sys.argv[2:]]
    sys.exit(main())
