"""Rewrite every recorded bundle."""

from __future__ import annotations

import shutil

from tests.support.bundles import CASES, RECORDED, Run

if __name__ == "__main__":
    for name, case in CASES.items():
        shutil.rmtree(RECORDED / name, ignore_errors=True)
        case(Run(RECORDED / name))
