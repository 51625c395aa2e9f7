"""Tensors that are read from their file only when the loader asks for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from worker.model.copies import DTYPES, Copier
from worker.model.pages import empty_tensor
from worker.weights.early import EarlyWeights
from worker.weights.header import CheckpointError, TensorEntry, read_header
from worker.weights.index import CheckpointIndex, Place


class OpenFiles:
    """Open SafeTensors files, each at its first use; a context manager.

    `place` names the file that holds a tensor.

    With `mmap`, tensors are views of the mapped file: no private memory, and the pages are
    shared between the stages of one machine. Without, they are read into private memory, by
    `threads` threads, or taken from `early`.
    """

    def __init__(
        self, place: Place, *, mmap: bool, threads: int, early: EarlyWeights | None = None
    ) -> None:
        self._place = place
        self._mmap = mmap
        self._open: dict[tuple[Path, str], Any] = {}
        self._headers: dict[Path, Mapping[str, TensorEntry]] = {}
        self._copier = Copier(threads, early)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._copier.__exit__(kind, error, trace)
        for handle in self._open.values():
            handle.__exit__(kind, error, trace)
        self._open.clear()

    def tensor(self, entry: TensorEntry, *, copied: bool = False) -> torch.Tensor:
        """Read one tensor; into private memory where `copied`, even from a mapped file.

        Raises:
            CheckpointError: the tensor is not here, or its file cannot be read.
        """
        path = self._place(entry)
        if entry.dtype in DTYPES and (copied or not self._mmap):
            return self._copier.tensor(path, self._here(path, entry))
        backend = "mmap" if self._mmap and not copied else "pread"
        key = (path, backend)
        try:
            if key not in self._open:
                self._open[key] = safe_open(
                    str(path), framework="pt", device="cpu", backend=backend
                )
            found: torch.Tensor = self._open[key].get_tensor(entry.name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}); fetch the model again"
            ) from error
        return found

    def fill(self, out: torch.Tensor, entry: TensorEntry) -> None:
        """Read one tensor into its place: `out` is contiguous, of its shape and dtype.

        Raises:
            CheckpointError: as `tensor`.
        """
        path = self._place(entry)
        self._copier.fill(out, path, self._here(path, entry))

    def _here(self, path: Path, entry: TensorEntry) -> TensorEntry:
        """Where the tensor lies in the file here, which need not be the file upstream."""
        if path not in self._headers:
            self._headers[path] = read_header(path)
        found = self._headers[path].get(entry.name)
        if found is None or (found.dtype, found.shape) != (entry.dtype, entry.shape):
            raise CheckpointError(
                f"{path} does not hold {entry.name} as {entry.dtype} {list(entry.shape)}; "
                "fetch the model again"
            )
        return found


class LazyTensor:
    """What transformers' loader takes for a SafeTensors slice: `lazy[...]` reads it.

    A tensor that the loader converts is `copied`: pages of a mapped file would stay resident
    beside the result for as long as any other tensor of that file is in use. One that has a `place`
    is read there, and nowhere else.
    """

    __slots__ = ("_copied", "_entry", "_files", "_on_read", "_place")

    def __init__(
        self,
        files: OpenFiles,
        entry: TensorEntry,
        on_read: Callable[[TensorEntry], None],
        *,
        copied: bool,
        place: torch.Tensor | None = None,
    ) -> None:
        self._files = files
        self._entry = entry
        self._on_read = on_read
        self._copied = copied
        self._place = place

    def __getitem__(self, index: Any) -> torch.Tensor:
        if self._place is not None:
            self.fill(self._place)
            return self._place[index]
        tensor = self._files.tensor(self._entry, copied=self._copied)[index]
        self._on_read(self._entry)
        return tensor

    def fill(self, out: torch.Tensor) -> None:
        """Read it into `out`, contiguous and of its shape; converted where the dtype differs."""
        if out.dtype == DTYPES.get(self._entry.dtype):
            self._files.fill(out, self._entry)
        else:
            out.copy_(self._files.tensor(self._entry, copied=True))
        self._on_read(self._entry)

    def get_shape(self) -> list[int]:
        """Return the shape, from the header."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Return the SafeTensors name of the dtype, from the header."""
        return self._entry.dtype


class StackedTensor:
    """Takes the place of one tensor for each expert; `stacked[...]` reads them into one.

    The library stacks and joins whole lists of tensors, which takes three times their memory:
    45 GB for a layer of 256 large experts. Here each is read straight into its place.
    """

    def __init__(self, blocks: list[list[LazyTensor]]) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self._blocks[0])

    def __iter__(self) -> Iterator[torch.Tensor]:
        shape = self.get_shape()[1:]
        for i in range(len(self)):
            expert = empty_tensor(shape, self._dtype())
            self._fill(expert, i)
            yield expert

    def __getitem__(self, index: Any) -> torch.Tensor:
        whole = empty_tensor(self.get_shape(), self._dtype())
        for i in range(len(self)):
            self._fill(whole[i], i)
        return whole[index]

    def get_shape(self) -> list[int]:
        """Return the shape of the whole, from the headers."""
        shapes = [block[0].get_shape() for block in self._blocks]
        return [len(self), sum(shape[0] for shape in shapes), *shapes[0][1:]]

    def get_dtype(self) -> str:
        """Return the SafeTensors name of the dtype, from the header."""
        return self._blocks[0][0].get_dtype()

    def _fill(self, expert: torch.Tensor, i: int) -> None:
        parts = [block[i] for block in self._blocks]
        rows = [part.get_shape()[0] for part in parts]
        for part, out in zip(parts, expert.split(rows), strict=True):
            part.fill(out)

    def _dtype(self) -> torch.dtype:
        return DTYPES[self.get_dtype()]


def lazy_tensors(
    index: CheckpointIndex,
    names: dict[str, str],
    files: OpenFiles,
    on_bytes: Callable[[int, int], None] | None,
    *,
    copied: Collection[str] = (),
    places: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> dict[str, LazyTensor]:
    """Return `{name the loader sees: lazy tensor}` for `{that name: checkpoint name}`.

    `on_bytes(done, total)` is called after each tensor is read. The loader changes the tensors
    it sees under the names in `copied`, and those that are not stored as bfloat16. Those of
    `places`, by the names it sees, are read into what is given there.

    Raises:
        CheckpointError: a file that is needed is missing or broken.
    """
    entries = {seen: index.entry(stored) for seen, stored in names.items()}
    total_bytes = sum(entry.size_bytes for entry in entries.values())
    done_bytes = 0

    def on_read(entry: TensorEntry) -> None:
        nonlocal done_bytes
        done_bytes += entry.size_bytes
        if on_bytes is not None:
            on_bytes(done_bytes, total_bytes)

    return {
        seen: LazyTensor(
            files,
            entry,
            on_read,
            copied=seen in copied or entry.dtype != "BF16",
            place=places.get(seen),
        )
        for seen, entry in entries.items()
    }
