"""Put a tape into TorchScript: torch's interpreter then runs its ops one after the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.jit._fuser import optimized_execution

from worker.model.tape import CannotReplay, Entry, Later, Opaque, Ref, Tape
from worker.model.tape_parts import TapePart, parts
from worker.model.tape_products import QuickProduct

# The step of any position: inputs and the tensors of the cache, tables and weights, the position.
Step = Callable[[list[torch.Tensor], list[torch.Tensor], int], torch.Tensor]
# Some of its ops: what they read, the position; what later ones read.
SpanRun = Callable[[list[torch.Tensor], int], list[torch.Tensor]]
_NAME = "step"
# What decode steps take beside tensors.
_AT = MappingProxyType({"at": "int"})
# an empty list says nothing of what it holds
_EMPTY_INTS = "torch.jit.annotate(List[int], [])"
_NO_TENSORS = "torch.jit.annotate(List[Tensor], [])"


def compiled(tape: Tape, inputs: int) -> Step:
    """Return a function `(inputs, others, position)` that does what `tape` says.

    The same kernels run in the same order; what is left out is Python.

    Raises:
        CannotReplay: an argument that cannot be written down.
    """
    functions = {e.op.name: e.op.function for e in tape.entries if isinstance(e.op, QuickProduct)}
    return _CompiledStep(function_of(script(tape, inputs), functions), functions)


@dataclass(frozen=True, eq=False)
class _CompiledStep:
    """A step; torch itself would not keep alive the functions that it calls."""

    run: Callable[..., torch.Tensor]
    functions: Mapping[str, Any]

    def __call__(
        self, given: list[torch.Tensor], others: list[torch.Tensor], at: int
    ) -> torch.Tensor:
        # what its optimizer finds is worth less than the half second that its first runs take
        with optimized_execution(False):
            return self.run(given, others, at)


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
    run = function_of("\n".join(lines) + "\n")

    def span(given: list[torch.Tensor], at: int) -> list[torch.Tensor]:
        with optimized_execution(False):
            outputs: list[torch.Tensor] = run(given, at)
        return outputs

    return span


def function_of(source: str, functions: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return the function `step` of a source, which may call `functions`.

    Raises:
        CannotReplay: TorchScript does not take it.
    """
    names = {"torch": torch, **(functions or {})}
    unit = torch.jit.CompilationUnit()
    try:
        unit.define(source, names.get)
        function: Callable[..., Any] = getattr(unit, _NAME)
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise CannotReplay(f"TorchScript refuses ({lines[0] if lines else 'no reason'})") from error
    return function


def script(tape: Tape, inputs: int, more: Mapping[str, str] = _AT) -> str:
    """Return the source of the step; what is alike in it, as layers are, is a function of its own.

    Torch reads each line of the source, which would take longer than all else that is done to a
    tape.

    Args:
        tape: what the step does.
        inputs: how many of its outside tensors change between steps.
        more: what the step takes beside tensors, with the types; opaque calls get it last.
    """
    names_of_more, kinds_of_more = ", ".join(more), _typed(more)
    found = parts(tape)
    texts = [_part_text(part, more) for part in found]
    several = (text for text, count in Counter(texts).items() if text and count > 1)
    names = {text: f"part{i}" for i, text in enumerate(several)}
    functions = [f"def {name}{text}" for text, name in names.items()]
    head = f"given: List[Tensor], other: List[Tensor], {kinds_of_more}"
    lines = [f"def {_NAME}({head}) -> Tensor:"]
    for i in range(len(tape.outside)):
        source = f"given[{i}]" if i < inputs else f"other[{i - inputs}]"
        lines.append(f"    o{i} = {source}")
    for part, text in zip(found, texts, strict=True):
        if text in names:
            given = ", ".join([*map(text_of, part.reads), names_of_more])
            results = ", ".join(map(text_of, part.gives))
            lines.append(f"    {f'{results} = ' if results else ''}{names[text]}({given})")
        else:
            for number in part.numbers:
                lines += [f"    {line}" for line in statements(number, tape.entries[number], more)]
    lines.append(f"    return {text_of(tape.output)}")
    return "\n".join([*functions, *lines]) + "\n"


def _typed(more: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in more.items())


def _part_text(part: TapePart, more: Mapping[str, str]) -> str:
    """Return the source of a function for the part, but for its name; "" where it does nothing."""
    if not part.gives and not any(_acts(entry) for entry in part.entries):
        return ""
    given = [f"o{i}: Tensor" for i in range(len(part.reads))]
    kinds = ", ".join("Tensor" for _ in part.gives)
    kind = f"Tuple[{kinds}]" if len(part.gives) > 1 else kinds or "None"
    lines = [f"({', '.join([*given, _typed(more)])}) -> {kind}:"]
    for number, entry in enumerate(part.entries):
        lines += [f"    {line}" for line in statements(number, entry, more)]
    if part.gives:
        lines.append(f"    return {', '.join(map(text_of, part.own_gives))}")
    return "\n".join(lines)


def _acts(entry: Entry) -> bool:
    """Say whether an op does more than to give its result."""
    return entry.is_mutable or isinstance(entry.op, Opaque)


def statements(number: int, entry: Entry, more: Mapping[str, str] = _AT) -> list[str]:
    """Return the source of one op."""
    arguments = [text_of(value) for value in entry.args]
    arguments += [f"{name}={text_of(value)}" for name, value in entry.named.items()]
    if isinstance(entry.op, Opaque):
        name = entry.op.__name__
        arguments += more
    elif isinstance(entry.op, QuickProduct):
        name = entry.op.name
    else:
        name = f"torch.ops.{entry.op.namespace}.{entry.op.overloadpacket.__name__}"
    call = f"{name}({', '.join(arguments)})"
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
