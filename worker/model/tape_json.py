"""Write a tape as values of JSON, and read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from worker.model.tape import CannotReplay, Entry, Later, Ref, Tape

# of torch, by the key under which their names are kept
_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "format": torch.memory_format}
_PLAIN = (bool, int, str)
_NAMESPACES = ("aten", "stageline")


def to_json(tape: Tape, inputs: int, names: Mapping[int, str]) -> dict[str, Any]:
    """Return a tape whose tensors, but for `inputs` that change, have a name by their `id`.

    Raises:
        CannotReplay: it has something that cannot be written down, as a tensor without a name.
    """
    outside = [names.get(id(tensor)) for tensor in tape.outside[inputs:]]
    if None in outside:
        raise CannotReplay("a table that is no part of the model")
    return {
        "ops": [
            [
                _op_name(entry.op),
                [_written(value) for value in entry.args],
                {name: _written(value) for name, value in entry.named.items()},
                entry.results,
            ]
            for entry in tape.entries
        ],
        "outside": outside,
        "output": [tape.output.entry, tape.output.place],
    }


def from_json(kept: Any, given: Sequence[torch.Tensor], named: Mapping[str, torch.Tensor]) -> Tape:
    """Return the tape, with `given` in the place of its inputs and the tensors of those names.

    Raises:
        Exception: of any kind, where `kept` is no tape of such tensors.
    """
    entries = [
        Entry(
            _op(name),
            tuple(_read(value) for value in args),
            {key: _read(value) for key, value in more.items()},
            results,
        )
        for name, args, more, results in kept["ops"]
    ]
    outside = [*given, *(named[name] for name in kept["outside"])]
    return Tape(entries, outside, Ref(*kept["output"]))


def _op_name(op: Any) -> str:
    if not isinstance(op, torch._ops.OpOverload) or op.namespace not in _NAMESPACES:
        raise CannotReplay(f"op {op}, which is neither one of torch's own nor of ours")
    return f"{op.namespace}.{op.overloadpacket.__name__}.{op._overloadname}"


def _op(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    assert namespace in _NAMESPACES
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _written(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": [value.entry, value.place]}
    if isinstance(value, Later):
        return {"later": value.offset}
    if isinstance(value, (list, tuple)):
        return [_written(inner) for inner in value]
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for key, kind in _NAMED.items():
        if isinstance(value, kind):
            return {key: str(value).removeprefix("torch.")}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if value is None or isinstance(value, _PLAIN):
        return value
    raise CannotReplay(f"an argument that is a {type(value).__name__}")


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    ((key, kept),) = value.items()
    if key == "ref":
        return Ref(*kept)
    if key in _NAMED:
        found = getattr(torch, kept)
        assert isinstance(found, _NAMED[key])
        return found
    readers: dict[str, Any] = {"later": Later, "device": torch.device, "float": float}
    return readers[key](kept)
