"""A tape that writes to memory that stays does what it did, and leaves what it gave alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from worker.model import tape_products
from worker.model.amx_products import amx_products
from worker.model.tape import Tape, TapeRecorder, merged
from worker.model.tape_buffers import buffered
from worker.model.tape_fuse import without_twins
from worker.model.tape_products import QuickProduct, with_own_products, with_quick_products
from worker.model.tape_script import compiled

Step = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
_DRAWN = torch.randn(3, 192, 64, generator=torch.Generator().manual_seed(1))
WEIGHTS = _DRAWN.bfloat16().unbind()
has_graphs = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 kernels"
)


def given(position: int) -> list[torch.Tensor]:
    """An input and a store."""
    generator = torch.Generator().manual_seed(position)
    drawn = (torch.randn(shape, generator=generator) for shape in ((1, 1, 64), (1, 3, 16, 64)))
    return [tensor.bfloat16() for tensor in drawn]


def layers(x: torch.Tensor, store: torch.Tensor, position: int) -> torch.Tensor:
    """Do all that the layers of a llama do with one position."""
    angle = torch.arange(position, position + 1)[:, None] * torch.linspace(1, 0.1, 64)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    for weight in WEIGHTS:
        wide = x.float()
        normed = (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).bfloat16()
        rows = torch.mv(weight, normed.reshape(64)).view(1, 3, 1, 64)
        turned = rows * cos + torch.cat((-rows[..., 32:], rows[..., :32]), -1) * sin
        store[:, :, position : position + 1] = turned
        seen = store[:, :, : position + 1]
        attended = torch.softmax(turned @ seen.transpose(2, 3), -1) @ seen
        gate, up, low = attended.transpose(1, 2).reshape(1, 1, 192).split(64, -1)
        x = x + torch.nn.functional.silu(gate) * up - low
    return x


def shortened(step: Step) -> Tape:
    """The tape of any position, with products that start soon, and buffers."""
    tapes = []
    for position in (2, 5):
        inputs = given(position)
        recorder = TapeRecorder(inputs)
        with recorder:
            output = step(inputs[0], inputs[1], position)
        tapes.append(recorder.tape(output))
    tape = without_twins(merged(tapes[0], tapes[1], 2, (2, 5)), 2)
    quick = with_quick_products(with_own_products(tape, 2), 2)
    return buffered(quick, {at: given(at) for at in (2, 5)}, 1)


def steps_one_after_the_other(step: Step, positions: tuple[int, ...]) -> list[torch.Tensor]:
    """What `step` gives and writes; outputs are looked at when all steps are done."""
    inputs = [given(position) for position in positions]
    outputs = [step(x, store, at) for (x, store), at in zip(inputs, positions, strict=True)]
    return [*outputs, *(store for _, store in inputs)]


@torch.inference_mode()
def test_steps_give_what_they_gave_and_later_ones_do_not_write_over_it() -> None:
    tape = shortened(layers)
    run = compiled(tape, 2)
    others = list(tape.outside[2:])
    found = steps_one_after_the_other(lambda x, store, at: run([x, store], others, at), (0, 9, 15))
    wanted = steps_one_after_the_other(layers, (0, 9, 15))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@torch.inference_mode()
def test_layers_share_buffers_and_views_of_them_are_made_once() -> None:
    tape = shortened(layers)
    blocks = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tape.outside}
    weights = WEIGHTS[0].untyped_storage().nbytes()
    sizes = [size for size in blocks.values() if size != weights]
    views = {"view", "select", "split", "expand", "unsqueeze", "_unsafe_view"}
    left = {entry.op.overloadpacket.__name__ for entry in tape.entries} & views
    assert (left, max(sizes) <= given(2)[1].nbytes, len(sizes) < 30) == (set(), True, True)


@torch.inference_mode()
def test_what_slides_over_a_table_is_no_view_that_stays() -> None:
    table = torch.randn(16, 64).bfloat16()

    def step(x: torch.Tensor, store: torch.Tensor, at: int) -> torch.Tensor:
        row = table[at : at + 1].view(1, 1, 64)
        store[:, :, at : at + 1] = row[:, None]
        return x + row

    tape = shortened(step)
    run = compiled(tape, 2)
    x, store = given(7)
    wanted = step(x, store.clone(), 7)
    assert torch.equal(run([x, store], list(tape.outside[2:]), 7), wanted)


@has_graphs
@torch.inference_mode()
def test_products_by_small_weights_start_sooner_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tape_products, "amx_products", lambda weights, rows: {})
    was = torch.jit.onednn_fusion_enabled()
    quick = {entry.op for entry in shortened(layers).entries if isinstance(entry.op, QuickProduct)}
    (product,) = quick
    column = torch.randn(64, 1).bfloat16()
    wanted = torch.mv(WEIGHTS[0], column[:, 0])[:, None]
    assert torch.equal(product(WEIGHTS[0], column), wanted)
    assert torch.jit.onednn_fusion_enabled() is was


@torch.inference_mode()
def test_where_there_are_tiles_products_are_code_of_our_own() -> None:
    ops = [entry.op.overloadpacket.__name__ for entry in shortened(layers).entries]
    if amx_products(list(WEIGHTS)):
        assert sum(op.startswith("run_3") for op in ops) == len(WEIGHTS)
        assert "mv" not in ops
    else:
        assert not any(op.startswith("run_") for op in ops)
