"""Say whether a model can be split exactly, and in which mode, without its weights.

    python -m tools.check_arch MODEL_FOLDER_OR_TYPE

A folder's config is shrunk; a type is tried with the recipe of the table in
docs/architectures.md. Exit codes: 0 it can be split, 1 it is refused or could not be tried, 2 it
cannot be read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.arch_engine import check_type  # noqa: E402 - found through ROOT
from tools.tiny_configs import COMPOSITES  # noqa: E402
from worker.model import internals  # noqa: E402
from worker.model.architecture import Architecture  # noqa: E402
from worker.model.cuts import legal_cuts  # noqa: E402
from worker.model.errors import UnsupportedModel  # noqa: E402
from worker.model.probe import probe  # noqa: E402
from worker.model.support import Mode  # noqa: E402

_MEANINGS = {
    "plain": "split logits are those of the whole, bit for bit",
    "tokens": "exact when the token ids reach every stage, which the worker sees to",
    "float32": "exact when hidden states cross the wire as float32, which the worker sees to",
    "tokens+float32": "exact with both, which the worker sees to",
}


def main() -> int:
    """Check one model; print one line for each thing found."""
    parser = argparse.ArgumentParser(
        prog="check_arch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a model folder (config.json is enough) or a model type")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code from the model's folder"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    started_s = time.perf_counter()
    try:
        mode, reason = _check(arguments.model, trust_remote_code=arguments.trust_remote_code)
    except UnsupportedModel as error:
        print(error, file=sys.stderr)
        return 2
    print(f"mode: {mode}: {_MEANINGS.get(mode, reason)}")
    print(f"took {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    return 0 if mode in _MEANINGS else 1


def _check(model: str, *, trust_remote_code: bool) -> tuple[str, str]:
    """Return the mode, or "refused" or "not tried", and why."""
    if Path(model).is_dir():
        return _probe(Architecture.read(Path(model), trust_remote_code=trust_remote_code))
    if model not in internals.known_causal_lm_types() and model not in COMPOSITES:
        raise UnsupportedModel(
            f"{model} is neither a folder nor a causal language model type of transformers; "
            "give the path of a model folder"
        )
    with tempfile.TemporaryDirectory() as work:
        result = check_type(model, Path(work))
    return ("not tried" if result.mode == "unknown" else result.mode), result.reason


def _probe(architecture: Architecture) -> tuple[str, str]:
    count = architecture.num_layers
    legal = legal_cuts(architecture.config, count)
    print(f"type: {architecture.config.model_type}, {count} layers")
    if len(legal) < count - 1:
        print(f"legal cut positions: {', '.join(map(str, legal)) or 'none'}")
    support = probe(architecture)
    return ("refused" if support.mode is Mode.REFUSED else support.mode.value), support.reason or ""


if __name__ == "__main__":
    raise SystemExit(main())
