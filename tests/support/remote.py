"""Weight files as a hub has them, in memory, and a source that gives their ranges."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors

from worker.weights.header import LENGTH_BYTES, TensorEntry, header_length, parse_header
from worker.weights.hub_file import FetchStopped, HubFile
from worker.weights.progress import DownloadMeter
from worker.weights.store import Store

ENDPOINT, REPO, COMMIT = "http://hub.test", "org/name", "c" * 40
# (name, dtype, shape) of a file's tensors
Shapes = list[tuple[str, str, tuple[int, ...]]]


@dataclass
class Remote:
    """The weight files of one commit.

    Attributes:
        files: content by file name.
        hub_files: what the hub says of them.
        entries: every tensor by name.
        tensors: its bytes by name.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    hub_files: dict[str, HubFile] = field(default_factory=dict)
    entries: dict[str, TensorEntry] = field(default_factory=dict)
    tensors: dict[str, bytes] = field(default_factory=dict)

    def add(self, file: str, shapes: Shapes, *, etag: str | None = "e1", seed: int = 0) -> None:
        """Make a weight file of random bytes, written by the safetensors library."""
        draw = random.Random(f"{file} {seed}")
        content: dict[str, safetensors.TensorSpec] = {}
        for name, dtype, shape in shapes:
            size_bytes = _ITEM_BYTES[dtype]
            for length in shape:
                size_bytes *= length
            data = draw.randbytes(size_bytes)
            self.tensors[name] = data  # which also keeps the memory of the pointer
            address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
            content[name] = safetensors.TensorSpec(
                dtype=_LIBRARY_NAMES[dtype],
                shape=list(shape),
                data_ptr=address or 0,
                data_len=len(data),
            )
        self.put(file, safetensors.serialize(content), etag)

    def put(self, file: str, raw: bytes, etag: str | None) -> None:
        """Take a weight file as it is."""
        length = header_length(raw[:64], Path(file), len(raw))
        header = parse_header(raw[LENGTH_BYTES : LENGTH_BYTES + length], Path(file), len(raw))
        self.files[file] = raw
        self.hub_files[file] = HubFile(file, len(raw), etag)
        self.entries.update(header)

    def write(self, folder: Path) -> Path:
        """Write the files into a folder, for a hub to serve."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, raw in self.files.items():
            (folder / name).write_bytes(raw)
        return folder


_ITEM_BYTES = {"F32": 4, "BF16": 2, "U8": 1}
_LIBRARY_NAMES = {"F32": "float32", "BF16": "bfloat16", "U8": "uint8"}


def layered(num_layers: int, *, width: int = 64, files: int = 2) -> Remote:
    """Make a model: embedding, layers spread over the files, norm and head."""
    shapes: Shapes = [("model.embed.weight", "BF16", (160, width))]
    for n in range(num_layers):
        shapes += [
            (f"model.layers.{n}.mlp.weight", "BF16", (width, 4 * width)),
            (f"model.layers.{n}.norm.weight", "F32", (width,)),
        ]
    shapes += [("model.norm.weight", "F32", (width,)), ("lm_head.weight", "BF16", (160, width))]
    remote = Remote()
    each = -(-len(shapes) // files)
    for number in range(files):
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        remote.add(name, shapes[number * each : (number + 1) * each])
    return remote


class MemorySource:
    """Gives ranges out of memory and counts what it gave.

    Args:
        fail_after_bytes: raise `error` once so much was given.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        *,
        chunk_bytes: int = 50_000,
        fail_after_bytes: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        self.files = files
        self.chunk_bytes = chunk_bytes
        self.fail_after_bytes = fail_after_bytes
        self.error = error
        self.asked: list[tuple[str, int, int]] = []
        self.given_bytes = 0
        self._lock = threading.Lock()

    def stream(self, file: HubFile, start: int, end: int, stop: threading.Event) -> Iterator[bytes]:
        """Yield the range, a chunk at a time."""
        with self._lock:
            self.asked.append((file.name, start, end))
        for at in range(start, end, self.chunk_bytes):
            if stop.is_set():
                raise FetchStopped
            chunk = self.files[file.name][at : min(at + self.chunk_bytes, end)]
            with self._lock:
                self.given_bytes += len(chunk)
                if self.fail_after_bytes is not None and self.given_bytes > self.fail_after_bytes:
                    assert self.error is not None
                    raise self.error
            yield chunk

    def interrupt(self) -> None:
        """Do nothing: nothing ever waits here."""


def quiet_meter(total_bytes: int = 0) -> DownloadMeter:
    """Return a meter whose reports nobody reads."""
    return DownloadMeter(total_bytes, lambda _: None, interval_s=60, stage=None)


def open_store(root: Path, *, commit: str = COMMIT, endpoint: str = ENDPOINT) -> Store:
    """Open the store of the model that `layered` makes."""
    return Store.open(root, endpoint, REPO, commit)


def held(store: Store, names: list[str]) -> dict[str, bytes]:
    """Read tensors out of the store's files with the safetensors library."""
    found: dict[str, bytes] = {}
    for name in names:
        path = store.find(name)
        assert path is not None, f"{name} is not in the store"
        tensors = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
        found[name] = bytes(tensors[name]["data"])
    return found
