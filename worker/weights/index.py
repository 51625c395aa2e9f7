"""Read what tensors a checkpoint holds, from its index and SafeTensors headers alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from worker.weights.header import CheckpointError, TensorEntry, read_header

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
Headers = Callable[[str], Mapping[str, TensorEntry]]
Place = Callable[[TensorEntry], Path]


class CheckpointIndex:
    """The tensors of one checkpoint.

    A file's header is asked for when one of its tensors first is, so files that a stage does not
    need may be absent.

    Args:
        files: which file holds each tensor.
        headers: gives the checked header of a file.
        place: gives the file here that holds a tensor under its name, whatever file it is in
            upstream; raises CheckpointError where none does.
    """

    def __init__(self, files: Mapping[str, str], headers: Headers, place: Place) -> None:
        self._files = files
        self._read = headers
        self._headers: dict[str, Mapping[str, TensorEntry]] = {}
        self.place = place

    @staticmethod
    def read(folder: Path) -> CheckpointIndex:
        """Read `model.safetensors`, or else `model.safetensors.index.json`, of `folder`.

        Where both are there transformers takes the single file, so a folder whose model was saved
        anew over old shards must not give the old weights here.

        Raises:
            CheckpointError: there are no SafeTensors weights, or the file is broken.
        """

        def header(file: str) -> Mapping[str, TensorEntry]:
            if not (folder / file).is_file():
                raise CheckpointError(
                    f"{folder / file} is missing, but this stage needs tensors from it; "
                    "fetch that file or the whole model again"
                )
            return read_header(folder / file)

        def place(entry: TensorEntry) -> Path:
            return folder / entry.file

        if (folder / SINGLE_FILE).is_file():
            return CheckpointIndex.of_single_file(header, place)
        if (folder / INDEX_FILE).is_file():
            return CheckpointIndex(read_weight_map(folder / INDEX_FILE), header, place)
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
            raise CheckpointError(
                f"{folder} holds only pickle weights (.bin, .pt), which can run code when read; "
                "convert them to SafeTensors first"
            )
        raise CheckpointError(
            f"{folder} holds no weights: neither {INDEX_FILE} nor {SINGLE_FILE} is there; check "
            "the path or fetch the model again"
        )

    @staticmethod
    def of_single_file(headers: Headers, place: Place) -> CheckpointIndex:
        """Make the index of a model without an index file: its one header has every name.

        Raises:
            CheckpointError: what `headers` raises.
        """
        index = CheckpointIndex({}, headers, place)
        header = index._header(SINGLE_FILE)
        index._files = dict.fromkeys(header, SINGLE_FILE)
        return index

    @cached_property
    def names(self) -> frozenset[str]:
        """Every tensor name of the checkpoint."""
        return frozenset(self._files)

    def file_of(self, name: str) -> str:
        """Name the file that holds tensor `name`."""
        return self._files[name]

    def entry(self, name: str) -> TensorEntry:
        """Return where tensor `name` lies.

        Raises:
            CheckpointError: its file is missing or broken, or does not hold it.
        """
        file = self._files[name]
        found = self._header(file).get(name)
        if found is None:
            raise CheckpointError(
                f"{file} does not hold tensor {name}, which the index places there; fetch the "
                "model again"
            )
        return found

    def _header(self, file: str) -> Mapping[str, TensorEntry]:
        if file not in self._headers:
            self._headers[file] = self._read(file)
        return self._headers[file]


def read_weight_map(path: Path) -> dict[str, str]:
    """Read an index file: which file holds each tensor.

    Raises:
        CheckpointError: it is no index, or names a file that is no plain SafeTensors file.
    """
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        pairs = [(str(name), file) for name, file in weight_map.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not a SafeTensors index ({error}); fetch the model again"
        ) from error
    for name, file in pairs:
        if not isinstance(file, str) or file in ("", ".", "..") or set(file) & {"/", "\\", "\0"}:
            raise CheckpointError(
                f"{path} places tensor {name} in {file!r}, which is not a plain file name; "
                "fetch the model again"
            )
        if not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} places tensor {name} in {file}, which is not a SafeTensors file; "
                "convert the model to SafeTensors first"
            )
    return dict(pairs)
