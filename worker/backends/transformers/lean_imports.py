"""Import transformers' model classes without what a stage never runs: most of what they drag in.

`PreTrainedModel` brings in torch's compiler (1.1 s of processor time), tensors that are spread over
a process group (0.5 s), scipy for the losses of object detection (0.3 s), and two more looks
through all model files (0.4 s each). A stage is one process, trains nothing and compiles nothing.
Nothing is taken away: what is asked for after all, by a model's own code, is imported then.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from worker.backends.transformers.late_modules import stand_in, true_module
from worker.backends.transformers.late_patterns import compile_late
from worker.backends.transformers.plain_sizes import SYMBOLIC, stand_in_for_sizes

_COMPILER = "torch._dynamo"
_TRACED_INDEX = f"{_COMPILER}._trace_wrapped_higher_order_op"


@contextmanager
def lean_imports() -> Iterator[None]:
    """Have transformers import its parts without those; torch and transformers are imported.

    For the whole process transformers takes it as one of no group. Where the compiler is imported
    already there is nothing to gain, and nothing is changed.
    """
    if _COMPILER in sys.modules:
        yield
        return
    # Marks of what the compiler may not look into. The true ones call the function itself.
    marks = {"allow_in_graph": _same, "assume_constant_result": _same, "disable": _disable}
    stand_in(_COMPILER, marks, needs=SYMBOLIC)
    stand_in_for_sizes()
    _be_of_no_group()
    _scan_models_once()
    with _without_scipy():
        _import_shared_parts()
        compile_late()
        yield


def _same(fn: Any) -> Any:
    return fn


def _disable(fn: Any = None, *_args: Any, **_named: Any) -> Any:
    return _same if fn is None else fn


class TransformGetItemToIndex:
    """Makes the true context of this name, in which masks of unusual kinds are made."""

    def __new__(cls) -> Any:
        """Return it."""
        true_module(_COMPILER)
        return importlib.import_module(_TRACED_INDEX).TransformGetItemToIndex()


def _be_of_no_group() -> None:
    """Have transformers note that torch has no process groups, as it does with a torch without."""
    from torch import distributed
    from transformers.utils.import_utils import is_torch_distributed_available

    is_available: Callable[[], bool] = distributed.is_available
    distributed.is_available = lambda: False
    try:
        is_torch_distributed_available.cache_clear()
        is_torch_distributed_available()  # remembers what it found
    finally:
        distributed.is_available = is_available


@contextmanager
def _without_scipy() -> Iterator[None]:
    """Have transformers believe that there is no scipy, as long as the block lasts."""
    import_utils: Any = importlib.import_module("transformers.utils.import_utils")
    is_there = import_utils._is_package_available
    import_utils._is_package_available = lambda name, *args, **named: (
        (False, "N/A") if name == "scipy" else is_there(name, *args, **named)
    )
    import_utils.is_scipy_available.cache_clear()
    try:
        import_utils.is_scipy_available()  # remembers what it found
        import_utils._is_package_available = is_there
        yield
    finally:
        import_utils._is_package_available = is_there
        import_utils.is_scipy_available.cache_clear()


def _scan_models_once() -> None:
    """Make `transformers.models` of what `transformers` found when it was imported itself."""
    whole: Any = importlib.import_module("transformers")
    import_utils: Any = importlib.import_module("transformers.utils.import_utils")
    prefix = "models."
    found = {
        module.removeprefix(prefix): set(names)
        for module, names in whole._import_structure.items()
        if module.startswith(prefix)
    }
    scan = import_utils.define_import_structure
    import_utils.define_import_structure = lambda *_: {frozenset(): found}
    try:
        models: Any = importlib.import_module("transformers.models")
    finally:
        import_utils.define_import_structure = scan
    known = models._modules | models._class_to_module.keys()
    models._object_missing_backend = {
        name.removeprefix(prefix): missing
        for name, missing in whole._object_missing_backend.items()
        if name.removeprefix(prefix) in known
    }


def _import_shared_parts() -> None:
    """Import what models' files have in common, in part in a way that costs less.

    `processing_utils` would run transformers' own file once more, which scans all model files.
    """
    utils: Any = importlib.import_module("transformers.utils")
    direct_import = utils.direct_transformers_import
    utils.direct_transformers_import = lambda *_: sys.modules["transformers"]
    try:
        with _traced_index_stood_in():
            importlib.import_module("transformers.processing_utils")
    finally:
        utils.direct_transformers_import = direct_import


@contextmanager
def _traced_index_stood_in() -> Iterator[None]:
    """Give `masking_utils` the one name that it takes out of the compiler."""
    stand = type(sys)(_TRACED_INDEX)
    vars(stand)["TransformGetItemToIndex"] = TransformGetItemToIndex
    sys.modules[_TRACED_INDEX] = stand
    try:
        importlib.import_module("transformers.masking_utils")
    finally:
        if sys.modules.get(_TRACED_INDEX) is stand:
            del sys.modules[_TRACED_INDEX]
    yield
