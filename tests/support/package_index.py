"""A package index on loopback, with a tiny wheel for each distribution that Stageline needs."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
# What pyproject.toml names, and something that one of them brings.
DIRECT = (
    "torch",
    "transformers",
    "accelerate",
    "bitsandbytes",
    "llvmlite",
    "safetensors",
    "psutil",
    "huggingface_hub",
    "rich",
    "jinja2",
    "filelock",
    "packaging",
    "zstandard",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "llguidance",
)
BROUGHT = {"transformers": ("PyYAML",)}


def pinned_versions() -> dict[str, str]:
    """Return what constraints.txt says, by lower-case name."""
    lines = CONSTRAINTS.read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {name.lower(): version for name, version in pairs}


@contextmanager
def running_index(folder: Path, extra: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve an index in `folder`, and yield its address.

    `extra` are versions beside the tested ones, by name.
    """
    versions = pinned_versions()
    for name in (*DIRECT, *(name for names in BROUGHT.values() for name in names)):
        _add(folder, name, versions[name.lower()])
    for name, version in (extra or {}).items():
        _add(folder, name, version)
    handler = partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _add(folder: Path, name: str, version: str) -> None:
    """Add one wheel; an index page of the simple API is a list of links."""
    place = folder / name.lower().replace("_", "-")
    place.mkdir(exist_ok=True)
    normal = name.replace("-", "_")
    wheel = place / f"{normal}-{version}-py3-none-any.whl"
    info = f"{normal}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in BROUGHT.get(name, ()))
    module = f"{normal.lower()}.py"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(module, f"__version__ = {version!r}\n")
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{module},,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    links = "".join(f'<a href="{file.name}">{file.name}</a>\n' for file in place.glob("*.whl"))
    (place / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>\n")
