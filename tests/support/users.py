"""Accounts of this machine that exist for one test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def account(name: str, *, home: str = "/nowhere", locked: bool = False) -> Iterator[str]:
    """Make an account without a password, with a home that is not made; yield its name."""
    name = f"{name}{os.getpid()}"
    subprocess.run(["useradd", "-M", "-d", home, "-s", "/bin/bash", name], check=True)
    try:
        # A new account is locked; `*` is no password either, but no lock.
        subprocess.run(["usermod", "-p", "!" if locked else "*", name], check=True)
        yield name
    finally:
        # By force: a session of its own may be ending still.
        subprocess.run(["userdel", "-f", name], check=True, capture_output=True)
