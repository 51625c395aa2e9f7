"""A tape is cut where the position counts, and its spans in turn do what the whole does."""

from __future__ import annotations

import torch

from worker.model.tape import Ref, Tape, TapeRecorder, merged
from worker.model.tape_cut import Span, cut, moving_refs, walk
from worker.model.tape_script import compiled_span

POSITIONS = (2, 5)


def step(x: torch.Tensor, store: torch.Tensor, position: int) -> torch.Tensor:
    """Five ops, two that write, two that read what grows, five ops; and one that nobody needs."""
    torch.cos(x)
    row = (((x + 1) * 2).sin().exp() - 1) / 3
    store[position : position + 1] = row
    seen = store[: position + 1]
    mixed = torch.softmax(row @ seen.t(), -1) @ seen
    return ((mixed + row) * 2).tanh().exp().neg()


def drawn(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 8, generator=generator), torch.randn(16, 8, generator=generator)]


def written() -> tuple[Tape, list[Span]]:
    """The tape of any position and its spans."""
    tapes: list[Tape] = []
    for position in POSITIONS:
        x, store = drawn(position)
        recorder = TapeRecorder([x, store])
        with recorder:
            output = step(x, store, position)
        tapes.append(recorder.tape(output))
    tape = merged(tapes[0], tapes[1], 2, POSITIONS)
    return tape, cut(tape, moving_refs(tape, {p: drawn(p) for p in POSITIONS}, 1))


@torch.inference_mode()
def test_what_goes_along_with_the_position_lies_between_what_does_not() -> None:
    tape, spans = written()
    names = [[tape.entries[n].op.overloadpacket.__name__ for n in span.numbers] for span in spans]
    assert [(span.is_fixed, ops) for span, ops in zip(spans, names, strict=True)] == [
        (True, ["add", "mul", "sin", "exp", "sub", "div"]),
        (False, ["slice", "copy_", "slice", "t", "matmul", "softmax", "matmul"]),
        (True, ["add", "mul", "tanh", "exp", "neg"]),
    ]
    last_row, mixed = (Ref(span.numbers[-1], 0) for span in spans[:2])
    assert [span.gives for span in spans] == [(last_row,), (mixed,), (tape.output,)]
    assert [set(span.reads) for span in spans] == [
        {Ref(None, 0)},
        {Ref(None, 1), last_row},
        {last_row, mixed},
    ]


@torch.inference_mode()
def test_spans_in_turn_do_any_position_each_with_what_it_says_it_reads() -> None:
    tape, spans = written()
    for position in (0, 3, 9):
        x, store = drawn(7)
        wanted = [step(x, store, position), store]
        inputs = drawn(7)
        known = {Ref(None, place): tensor for place, tensor in enumerate(inputs)}
        for span in spans:
            values = {ref: known[ref] for ref in span.reads}
            if span.is_fixed:
                walk(tape, span.numbers, values, position)
                known.update((ref, values[ref]) for ref in span.gives)
            else:
                run = compiled_span(tape, span.numbers, span.reads, span.gives)
                outputs = run(list(values.values()), position)
                known.update(zip(span.gives, outputs, strict=True))
        found = [known[tape.output], inputs[1]]
        assert all(map(torch.equal, found, wanted))
