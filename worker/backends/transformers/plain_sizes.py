"""Answer what torch asks of sizes that are plain numbers, without its symbolic ones and sympy.

On the meta device, where a stage is planned and its memory is measured, many ops are Python, which
asks functions of `torch.fx.experimental.symbolic_shapes` whether sizes are alike. Of plain numbers
they say what `==` says. The module brings sympy, which takes 0.4 s of processor time. Whatever is
asked otherwise, or of anything else than plain numbers, goes to the true module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker.backends.transformers.late_modules import stand_in, true_module

_SHAPES = "torch.fx.experimental.symbolic_shapes"
_SYMPY, _FUNCTIONS = "sympy", "torch.utils._sympy.functions"
# What has to be itself before anything that works with symbols is imported.
SYMBOLIC = (_SYMPY, _FUNCTIONS, _SHAPES)
_Answer = Callable[..., Any]


def stand_in_for_sizes() -> None:
    """Put stand-ins for symbolic sizes and sympy where neither is imported yet."""
    stand_in(_SYMPY, {"Basic": _NoSymbol})
    # an op asks for it by name and uses it for symbolic sizes alone
    stand_in(_FUNCTIONS, {"Max": None}, needs=[_SYMPY])
    stand_in(_SHAPES, _functions(), needs=[_SYMPY, _FUNCTIONS])


class _NoSymbol:
    """The kind of `sympy.Basic`: there is none as long as nobody has imported sympy."""


def _functions() -> dict[str, _Answer]:
    guards = "expect_true guard_or_false guard_or_true guard_size_oblivious statically_known_true"
    plain: dict[str, tuple[Callable[..., bool], _Answer]] = {
        **dict.fromkeys(guards.split(), (_is_bool, lambda asked: asked)),
        "is_nested_int": (_is_int, lambda size: False),
        "sym_and": (_are_bools, lambda *asked: all(asked)),
        "sym_or": (_are_bools, lambda *asked: any(asked)),
        "sym_eq": (_are_sizes, lambda one, other: one == other),
        # asked for by name, and called for symbolic sizes alone
        "guarding_hint_or_throw": (_never, lambda: None),
        "has_guarding_hint": (_never, lambda: None),
    }
    return {name: _function(name, *each) for name, each in plain.items()}


def _function(name: str, is_plain: Callable[..., bool], answer: _Answer) -> _Answer:
    def function(*args: Any, **named: Any) -> Any:
        if not named and is_plain(*args):
            return answer(*args)
        return getattr(true_module(_SHAPES), name)(*args, **named)

    return function


def _never(*_args: Any) -> bool:
    return False


def _is_bool(*args: Any) -> bool:
    return len(args) == 1 and type(args[0]) is bool


def _are_bools(*args: Any) -> bool:
    return bool(args) and all(type(each) is bool for each in args)


def _is_int(*args: Any) -> bool:
    return len(args) == 1 and type(args[0]) is int


def _are_sizes(*args: Any) -> bool:
    """Say whether these are two numbers, or two tuples of numbers."""
    if len(args) == 2 and all(isinstance(each, tuple) for each in args):
        return all(type(size) is int for each in args for size in each)
    return len(args) == 2 and all(type(each) is int for each in args)
