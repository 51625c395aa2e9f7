"""Read weights from files into private memory, large ones by several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from worker.model.pages import empty_tensor
from worker.weights.early import EarlyWeights
from worker.weights.header import CheckpointError, TensorEntry

# The part of one tensor that one thread reads at a time.
_SHARE_BYTES = 4 << 20
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class Copier:
    """Copies tensors out of files with `threads` threads; a context manager that ends them.

    What `early` has read already is not copied but taken.
    """

    def __init__(self, threads: int, early: EarlyWeights | None = None) -> None:
        self._early = early or EarlyWeights()
        self._pool = ThreadPoolExecutor(threads, "weights") if threads > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def tensor(self, path: Path, entry: TensorEntry) -> torch.Tensor:
        """Return the tensor that lies at `entry` of `path`; its dtype must be one of `DTYPES`.

        Raises:
            CheckpointError: the file cannot be read, or is too short.
        """
        dtype = DTYPES[entry.dtype]
        early = self._early.take(path, entry)
        if early is None:
            out, done_bytes = empty_tensor(entry.shape, dtype), 0
        else:
            block, done_bytes = early
            out = torch.frombuffer(block, dtype=dtype).reshape(entry.shape)
        self.fill(out, path, entry, done_bytes=done_bytes)
        return out

    def fill(
        self, out: torch.Tensor, path: Path, entry: TensorEntry, *, done_bytes: int = 0
    ) -> None:
        """Write the bytes at `entry` of `path` over `out`, contiguous and of the same size.

        The first `done_bytes` are there already.

        Raises:
            CheckpointError: as `tensor`.
        """
        if entry.size_bytes == 0:
            return
        target = out.reshape(-1).view(torch.uint8).numpy().data
        if len(target) != entry.size_bytes:
            raise ValueError(f"{entry} does not fill {tuple(out.shape)} of {out.dtype}")
        if self._pool is None or entry.size_bytes - done_bytes <= _SHARE_BYTES:
            _read(path, entry.offset_bytes + done_bytes, target[done_bytes:])
            return
        shares = [
            self._pool.submit(
                _read, path, entry.offset_bytes + start, target[start : start + _SHARE_BYTES]
            )
            for start in range(done_bytes, entry.size_bytes, _SHARE_BYTES)
        ]
        for share in shares:
            share.result()


def _read(path: Path, offset_bytes: int, target: memoryview) -> None:
    try:
        # a handle for each share: threads would move one another's position in a common one
        with path.open("rb", buffering=0) as file:
            file.seek(offset_bytes)
            done_bytes = 0
            while done_bytes < len(target):
                count = file.readinto(target[done_bytes:])
                if not count:
                    raise CheckpointError(
                        f"{path} ends at byte {offset_bytes + done_bytes}, inside a tensor; "
                        "fetch the model again"
                    )
                done_bytes += count
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); fetch the model again") from error
