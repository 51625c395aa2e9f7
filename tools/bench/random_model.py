"""Models to measure with: random weights, in a folder that is made where it is not there yet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.arch_engine import write_checkpoint
from tools.load_memory import llama_1_1b, llama_1b, qwen3_moe
from tools.tiny_configs import recipe_config

KINDS = ("1.1b", "llama", "moe", "tiny")


@contextmanager
def model_folder(kind: str, given: Path | None) -> Iterator[Path]:
    """Give a folder with a model; one made here in a temporary place is removed again.

    `1.1b` has the shape of TinyLlama-1.1B (2.1 GiB), `llama` that of Llama-3.2-1B (2.3 GiB),
    `moe` has 24 layers of 16 experts (0.8 GiB), `tiny` is for tests.
    A `given` folder is used as it is when it holds a config.
    """
    if given is not None and (given / "config.json").is_file():
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="stageline-bench-") as temporary:
        folder = given or Path(temporary) / kind
        _write(kind, folder)
        yield folder


def _write(kind: str, folder: Path) -> None:
    if kind == "tiny":
        write_checkpoint(recipe_config("llama"), folder, sharded=True)
    elif kind == "moe":
        qwen3_moe(folder)
    elif kind == "1.1b":
        llama_1_1b(folder)
    else:
        llama_1b(folder)
