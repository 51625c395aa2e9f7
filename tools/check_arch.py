"""Say whether a model can be split exactly, and in which mode, without its weights.

    python -m tools.check_arch MODEL_FOLDER_OR_TYPE

A folder's config is shrunk; a type is tried with the recipe of `tools/tiny_configs`, or else
with its default config shrunk. The exit code is 0 where it can be split, 1 where it is refused,
2 where it cannot be read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

from tools.arch_engine import check_type
from tools.tiny_configs import COMPOSITES, RECIPES
from worker.model import internals
from worker.model.architecture import Architecture
from worker.model.cuts import legal_cuts
from worker.model.errors import UnsupportedModel
from worker.model.probe import probe
from worker.model.support import Mode, Support


def main() -> int:
    """Check one model; print one line for each thing found."""
    parser = argparse.ArgumentParser(prog="check_arch", description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model folder (config.json is enough) or a model type")
    parser.add_argument("--trust-remote-code", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    started = time.perf_counter()
    try:
        support = _check(arguments.model, trust_remote_code=arguments.trust_remote_code)
    except UnsupportedModel as error:
        print(error, file=sys.stderr)
        return 2
    print(f"mode: {support.mode.value}" + (f" ({support.reason})" if support.reason else ""))
    print(f"took {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return 1 if support.mode is Mode.REFUSED else 0


def _check(model: str, *, trust_remote_code: bool) -> Support:
    folder = Path(model)
    if folder.is_dir():
        architecture = Architecture.read(folder, trust_remote_code=trust_remote_code)
        return _probe(architecture)
    known = internals.known_causal_lm_types()
    if model in RECIPES or model in COMPOSITES:
        with tempfile.TemporaryDirectory() as work:
            found = check_type(model, Path(work))
        mode = Mode(found.mode) if found.mode != "unknown" else Mode.REFUSED
        return Support(model, mode, found.reason or None, source="probe")
    if model not in known:
        raise UnsupportedModel(
            f"{model} is neither a folder nor a causal language model type of transformers; "
            "give the path of a model folder"
        )
    config = known[model]()
    return _probe(Architecture(config, internals.causal_lm_class(config)))


def _probe(architecture: Architecture) -> Support:
    count = architecture.num_layers
    legal = legal_cuts(architecture.config, count)
    print(f"type: {architecture.config.model_type}, {count} layers")
    if len(legal) < count - 1:
        print(f"legal cut positions: {', '.join(map(str, legal)) or 'none'}")
    return probe(architecture)


if __name__ == "__main__":
    raise SystemExit(main())
