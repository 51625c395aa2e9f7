"""What a worker does not import is there all the same for whoever asks for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = (
    "torch._dynamo.eval_frame",
    "torch.distributed.tensor",
    "scipy.optimize",
    "sympy.core",
)
ASKED = f"""
import importlib, json, sys
import torch, transformers
from transformers.utils import import_utils
from worker.backends.transformers.lean_imports import lean_imports

with lean_imports():
    import worker.backends.transformers.opening
lean_models = sys.modules.pop("transformers.models")
left_out = [name for name in {LEFT_OUT} if name in sys.modules]
asked = [
    *((guard, (plain,)) for plain in (True, False) for guard in (
        "expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious",
        "statically_known_true")),
    ("is_nested_int", (3,)),
    *((join, plain) for plain in [(True,), (True, False), (False, False), (True, True)]
      for join in ("sym_and", "sym_or")),
    *(("sym_eq", plain) for plain in [
        (2, 2), (2, 3), ((), ()), ((1, 2), (1, 2)), ((1, 2), (1, 3)), ((1,), (1, 1)),
        (torch.Size((4, 1)), (4, 1))]),
]
sizes = "torch.fx.experimental.symbolic_shapes"
before = [getattr(sys.modules[sizes], name)(*args) for name, args in asked]
still_left_out = "sympy.core" not in sys.modules
import torch._dynamo.config
true = importlib.import_module(sizes)
after = [getattr(true, name)(*args) for name, args in asked]
models = importlib.import_module("transformers.models")
print(json.dumps({{
    "left_out": left_out,
    "answers": before == after and list(map(type, before)) == list(map(type, after)),
    "still_left_out": still_left_out,
    "one_config": torch._dynamo.config is sys.modules["torch._dynamo.config"],
    "scipy": import_utils.is_scipy_available(),
    "models": all(getattr(models, name) == getattr(lean_models, name) for name in (
        "_class_to_module", "_object_missing_backend", "_modules")),
}}))
"""


def test_a_lean_import_answers_and_gives_as_a_full_one_does() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ASKED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "left_out": [],
        "answers": True,
        "still_left_out": True,
        "one_config": True,
        "scipy": True,
        "models": True,
    }
