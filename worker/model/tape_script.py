"""Put a tape into TorchScript: torch's interpreter then runs its ops one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.jit._fuser import optimized_execution

from worker.model.tape import CannotReplay, Entry, Later, Ref, Tape

# The step of any position: inputs and the tensors of the cache, tables and weights, the position.
Step = Callable[[list[torch.Tensor], list[torch.Tensor], int], torch.Tensor]
# Some of its ops: what they read, the position; what later ones read.
SpanRun = Callable[[list[torch.Tensor], int], list[torch.Tensor]]
_NAME = "step"
# an empty list says nothing of what it holds
_EMPTY_INTS = "torch.jit.annotate(List[int], [])"
_NO_TENSORS = "torch.jit.annotate(List[Tensor], [])"


def compiled(tape: Tape, inputs: int) -> Step:
    """Return a function `(inputs, others, position)` that does what `tape` says.

    The same kernels run in the same order; what is left out is Python.

    Raises:
        CannotReplay: an argument that cannot be written down.
    """
    run = _function(script(tape, inputs))

    def step(given: list[torch.Tensor], others: list[torch.Tensor], at: int) -> torch.Tensor:
        # what its optimizer finds is worth less than the half second that its first runs take
        with optimized_execution(False):
            output: torch.Tensor = run(given, others, at)
        return output

    return step


def compiled_span(
    tape: Tape, numbers: Iterable[int], reads: Sequence[Ref], gives: Sequence[Ref]
) -> SpanRun:
    """Return a function `(reads, position)` that does some entries of `tape` and gives `gives`.

    Raises:
        CannotReplay: an argument that cannot be written down.
    """
    lines = [f"def {_NAME}(given: List[Tensor], at: int) -> List[Tensor]:"]
    lines += [f"    {text_of(ref)} = given[{i}]" for i, ref in enumerate(reads)]
    lines += [f"    {line}" for n in numbers for line in statements(n, tape.entries[n])]
    results = ", ".join(map(text_of, gives))
    lines.append(f"    return {f'[{results}]' if gives else _NO_TENSORS}")
    run = _function("\n".join(lines) + "\n")

    def span(given: list[torch.Tensor], at: int) -> list[torch.Tensor]:
        with optimized_execution(False):
            outputs: list[torch.Tensor] = run(given, at)
        return outputs

    return span


def _function(source: str) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = getattr(torch.jit.CompilationUnit(source), _NAME)
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise CannotReplay(f"TorchScript refuses ({lines[0] if lines else 'no reason'})") from error
    return function


def script(tape: Tape, inputs: int) -> str:
    """Return the source of the step."""
    lines = [f"def {_NAME}(given: List[Tensor], other: List[Tensor], at: int) -> Tensor:"]
    for i in range(len(tape.outside)):
        source = f"given[{i}]" if i < inputs else f"other[{i - inputs}]"
        lines.append(f"    o{i} = {source}")
    for number, entry in enumerate(tape.entries):
        lines += [f"    {statement}" for statement in statements(number, entry)]
    lines.append(f"    return {text_of(tape.output)}")
    return "\n".join(lines) + "\n"


def statements(number: int, entry: Entry) -> list[str]:
    """Return the source of one op."""
    arguments = [text_of(value) for value in entry.args]
    arguments += [f"{name}={text_of(value)}" for name, value in entry.named.items()]
    name = entry.op.overloadpacket.__name__
    call = f"torch.ops.aten.{name}({', '.join(arguments)})"
    if entry.results is None:
        return [f"e{number}_0 = {call}"]
    names = [f"e{number}_{place}" for place in range(entry.results)]
    if not isinstance(entry.op._schema.returns[0].type, torch.ListType):
        return [f"{', '.join(names)} = {call}"]
    return [
        f"e{number} = {call}",
        *(f"{name} = e{number}[{place}]" for place, name in enumerate(names)),
    ]


def text_of(value: Any) -> str:
    """Return the source of an argument."""
    if isinstance(value, Ref):
        return f"o{value.place}" if value.entry is None else f"e{value.entry}_{value.place}"
    if isinstance(value, Later):
        return f"at + {value.offset}" if value.offset else "at"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text_of, value))}]" if value else _EMPTY_INTS
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    if isinstance(value, str):
        return repr(value)
    raise CannotReplay(f"an argument that is a {type(value).__name__}")
