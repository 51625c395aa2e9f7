"""Keep the bundle of a broken run for the tests: small, and without what is of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from tests.support.cli import ROOT

LINES_KEPT = 40  # At the beginning and at the end of each file.
RECORDED = ROOT / "tests" / "data" / "runs"


def record(name: str, bundle: Path, lab: Path) -> Path:
    """Copy a bundle to where recorded ones are, cleaned; return its new place."""
    to = RECORDED / name
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(bundle, to)
    for file in to.rglob("*"):
        if file.is_file():
            lines = file.read_text("utf-8", "replace").splitlines(keepends=True)
            if file.suffix != ".json" and len(lines) > 2 * LINES_KEPT:
                lines = lines[:LINES_KEPT] + lines[-LINES_KEPT:]
            file.write_text(_cleaned("".join(lines), lab), "utf-8")
            file.chmod(0o644)
    return to


def _cleaned(text: str, lab: Path) -> str:
    """Replace paths, names and tokens of this machine; lengths may change."""
    replaced = {
        str(lab): "/lab",
        sys.executable: "/opt/stageline/bin/python",
        sys.prefix: "/opt/stageline",
        sys.base_prefix: "/usr",
        str(ROOT): "/src",
        str(Path.home()): "/home/user",
    }
    for old, new in sorted(replaced.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(old, new)
        text = text.replace(json.dumps(old)[1:-1], new)
    text = re.sub(rf'"host": ?"{re.escape(os.uname().nodename)}"', '"host":"hub"', text)
    return re.sub(r'"platform": "[^"]*"', '"platform": "linux x86_64"', text)
