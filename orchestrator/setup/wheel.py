"""The running packages as a wheel, made in memory: what a host gets is what runs here."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import worker.protocol
from orchestrator import __version__
from orchestrator.setup.pins import Pins

_PACKAGES = ("worker", "orchestrator")
# The same packages give the same bytes, so that a host can tell whether it has them.
_TIME = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: stageline\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel's file."""

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        """The digest of its bytes, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


def own_wheel(pins: Pins) -> Wheel:
    """Return the packages that run here, with their dependencies named in the metadata.

    Raises:
        OSError: a file of them cannot be read.
    """
    root = Path(worker.protocol.__file__).resolve().parents[2]
    files = {str(path.relative_to(root)): path.read_bytes() for path in _sources(root)}
    info = f"stageline-{__version__}.dist-info"
    files[f"{info}/METADATA"] = _metadata(pins).encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    files[f"{info}/entry_points.txt"] = _entry_points(pins).encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
    return Wheel(f"stageline-{__version__}-py3-none-any.whl", _zipped(files))


def _sources(root: Path) -> list[Path]:
    return sorted(
        path
        for package in _PACKAGES
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def _metadata(pins: Pins) -> str:
    lines = [
        "Metadata-Version: 2.1",
        "Name: stageline",
        f"Version: {__version__}",
        f"Requires-Python: {pins.python}",
        *(f"Requires-Dist: {requirement}" for requirement in pins.requires),
    ]
    return "\n".join(lines) + "\n"


def _entry_points(pins: Pins) -> str:
    scripts = "".join(f"{name} = {place}\n" for name, place in pins.scripts.items())
    return f"[console_scripts]\n{scripts}"


def _record(files: dict[str, bytes], own_name: str) -> str:
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    return "\n".join([*lines, f"{own_name},,"]) + "\n"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()
