"""Find the bundle that a user names: a folder, the newest of a folder of them, or an archive."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator.bundle.archive import ArchiveError, unpack
from orchestrator.bundle.location import bundles_in
from orchestrator.bundle.reader import Bundle, is_bundle, read_bundle


class NoBundleError(Exception):
    """There is no bundle; the text says what was found and what to give instead."""


@contextmanager
def bundle_folder(path: Path) -> Iterator[tuple[Path, Path]]:
    """Give the folder of a bundle's files, and what to call the bundle.

    The folder of an unpacked archive is removed at the end.

    Raises:
        NoBundleError: `path` leads to no bundle.
    """
    if path.is_file():
        with tempfile.TemporaryDirectory(prefix="stageline-bundle-") as scratch:
            try:
                folder = unpack(path, Path(scratch))
            except ArchiveError as error:
                raise NoBundleError(str(error)) from None
            yield folder, path
        return
    if not is_bundle(path):
        bundles = bundles_in(path)
        if not bundles:
            raise NoBundleError(
                f"{path} is no bundle and holds none; give the path that a run printed at its end"
            )
        path = bundles[-1]
    yield path, path


def open_bundle(path: Path) -> Bundle:
    """Read the bundle that `path` leads to.

    Raises:
        NoBundleError: it leads to none.
    """
    with bundle_folder(path) as (folder, name):
        return replace(read_bundle(folder), path=name)
