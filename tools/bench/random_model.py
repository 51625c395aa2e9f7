"""Models to measure with: random weights, in a folder that is made where it is not there yet.

    python -m tools.bench.random_model KIND FOLDER

writes one with a tokenizer of bytes, so that `orchestrator bench` and `run` take it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.tokenizers import byte_tokenizer
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


def main() -> None:
    """Write a model that can be asked with text."""
    parser = argparse.ArgumentParser(description="write a model of random weights to measure with")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path, help="not there yet, or empty")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if any(given.folder.iterdir()):
        parser.error(f"{given.folder} is not empty")
    _write(given.kind, given.folder)
    byte_tokenizer().save_pretrained(given.folder)


if __name__ == "__main__":
    main()
