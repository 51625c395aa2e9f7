"""Packs of rows, each with the bits it gets alone: found out once for each kind of pack.

The rows are then worked on both ways, and every bit of what comes out and of what was cached is
compared. In that pack each op is watched; ops follow from shapes, and all that follows from a
row's data or position is done row by row, so packs of the same kind need no watching after it.
What was found out is remembered; at the next start the rows of one request alone are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from worker.model import internals
from worker.model.interfaces import Interfaces
from worker.model.kept_verdicts import KeptVerdicts
from worker.model.loaded import LoadedStage
from worker.model.pack import Pack, PackKind, Piece, Verdict, filled, newest, restore, same_bits
from worker.model.pack_cache import PackCache
from worker.model.pack_tape import PackTape
from worker.model.row_kernels import RowKernels
from worker.model.row_modules import RowModules
from worker.model.row_ops import NotPackable, RowOps
from worker.model.row_pack import RowPack
from worker.model.run import StageRunner
from worker.model.tape import CannotReplay
from worker.remembered import NOTHING, Remembered

# More rows are hardly faster, and the kernels of more than 32 differ from those of one. Few sizes,
# as each has to be found out about; 4 rows take hardly longer than 2, and 16 than 8.
PACK_SIZES = (4, 16)
# Tables that do not depend on how long the sequence is.
_STEADY_ROTARY = frozenset(("default", "linear", "llama3", "yarn", "proportional"))
_INEXACT = Verdict(False)


class Packs:
    """Runs packs of one stage, and remembers what was found out about each kind."""

    def __init__(self, runner: StageRunner, remembered: Remembered = NOTHING) -> None:
        self._runner = runner
        self._kept = KeptVerdicts(runner, remembered)
        self._interfaces = Interfaces.of(runner.loaded.model)
        self._kernels = RowKernels()
        self._modules = RowModules(runner.loaded.model)
        like = runner.new_cache()
        may_pack = _may_pack(runner.loaded, self._interfaces) and PackCache.can_stand_for(like)
        self._cache = PackCache(like) if may_pack else None
        self.sizes = PACK_SIZES if may_pack else ()
        self._verdicts: dict[PackKind, Verdict] = {}
        self._tapes: dict[tuple[int, str], PackTape] = {}

    @property
    def verdicts(self) -> dict[PackKind, Verdict]:
        """What was found out so far."""
        return dict(self._verdicts)

    @property
    def tapes(self) -> dict[tuple[int, str], PackTape]:
        """The short ways known or on the way to be, by size and what comes out."""
        return dict(self._tapes)

    def may_run(self, kind: PackKind) -> bool:
        """Say whether a kind of pack is not known to be inexact."""
        return self._verdicts.get(kind, Verdict(True)).is_exact

    def run(self, pieces: Sequence[Piece], kind: PackKind) -> list[torch.Tensor | Exception]:
        """Append each piece to its cache; return `[1, rows, width]` or `[rows, vocab]` of each.

        An exception stands in the place of the outputs of a piece that fails; its cache may hold
        some of the rows then.
        """
        verdict = self._verdicts.get(kind)
        if verdict is None:
            return self._first(pieces, kind)
        ops = RowOps(kind.size, self._kernels) if verdict.is_watched else None
        tape = self._tape(pieces, kind) if ops is None else None
        try:
            if tape is not None:
                return [*self._taped(pieces, kind, verdict, tape)]
            return [*self._packed(pieces, kind, verdict, ops)]
        except NotPackable:
            self._verdicts[kind] = _INEXACT
        except Exception:  # noqa: BLE001 - each piece alone shows whose failure it is
            pass
        return [self.alone(piece, kind.want) for piece in pieces]

    def _first(self, pieces: Sequence[Piece], kind: PackKind) -> list[torch.Tensor | Exception]:
        """Run the first pack of a kind since the start."""
        kept = self._kept.get(kind)
        if kept is None:
            return self._compared(pieces, kind)
        if kept.is_exact:
            return self._confirmed(pieces, kind, kept)
        self._verdicts[kind] = kept
        return [self.alone(piece, kind.want) for piece in pieces]

    def alone(self, piece: Piece, want: str) -> torch.Tensor | Exception:
        """Run a piece position by position."""
        one: Literal["logits", "hidden"] = "logits" if want == "row_logits" else "hidden"
        outputs = []
        try:
            for i in range(piece.count):
                ids = None if piece.tokens is None else piece.tokens[:, i : i + 1]
                x = piece.x[:, i : i + 1]
                outputs.append(self._runner.forward(x, piece.cache, tokens=ids, want=one))
        except Exception as error:  # noqa: BLE001 - it is the caller's, and no other piece's
            return error
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, int(one == "hidden"))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply what follows the last layer to `[1, rows, width]`: logits `[rows, vocab]`."""
        count = hidden.shape[1]
        size = next((size for size in self.sizes if size >= count), 0)
        kind = PackKind(size, False, "head")
        if count == 1 or not size or not self.may_run(kind):
            return torch.cat([self._runner.head(row) for row in hidden.split(1, 1)])
        verdict = self._verdicts.get(kind)
        if verdict is not None:
            ops = RowOps(size, self._kernels) if verdict.is_watched else None
            return self._packed_head(hidden, size, verdict, ops)
        singly = torch.cat([self._runner.head(row) for row in hidden.split(1, 1)])
        ops = RowOps(size, self._kernels)
        try:
            packed = self._packed_head(hidden, size, Verdict(True), ops)
            self._verdicts[kind] = self._judged([singly], [packed], ops)
        except Exception:  # noqa: BLE001 - whatever a model does in a pack, it can do without
            self._verdicts[kind] = _INEXACT
        return singly

    def _packed_head(
        self, hidden: torch.Tensor, size: int, verdict: Verdict, ops: RowOps | None
    ) -> torch.Tensor:
        rows = filled([hidden], size)
        with self._modules.minded(size, verdict.uneven, ops), _watched(ops):
            return self._runner.head(rows, want="row_logits")[: hidden.shape[1]]

    def _tape(self, pieces: Sequence[Piece], kind: PackKind) -> PackTape | None:
        """Return the short way, where there may be one for these pieces."""
        if not self._runner.takes_positions or not all(p.cache.only_grows for p in pieces):
            return None
        tape = self._tapes.setdefault(
            (kind.size, kind.want), PackTape(own=self._runner.loaded.options.engine != "stock")
        )
        return None if tape.is_refused else tape

    def _taped(
        self, pieces: Sequence[Piece], kind: PackKind, verdict: Verdict, tape: PackTape
    ) -> Sequence[torch.Tensor]:
        """Take the short way, or a step towards it."""
        try:
            if tape.is_proved:
                pack = Pack.of(pieces, kind, takes_positions=True)
                return pack.shares(tape.run(pack.inputs, pack.members))
            if not tape.is_written:
                return self._packed(pieces, kind, verdict, None, tape)
        except CannotReplay:
            tape.refuse()
        outputs = self._packed(pieces, kind, verdict, None)
        if tape.is_written:
            self._prove(pieces, kind, tape, outputs)
        return outputs

    def _prove(
        self, pieces: Sequence[Piece], kind: PackKind, tape: PackTape, right: Sequence[torch.Tensor]
    ) -> None:
        """Work the short way too, and leave the caches as they are."""
        starts = [piece.cache.seen - piece.count for piece in pieces]
        after = [p.cache.snapshot(start) for p, start in zip(pieces, starts, strict=True)]
        written = [rows.clone() for piece in pieces for rows in newest(piece)]
        for piece, start in zip(pieces, starts, strict=True):
            piece.cache.crop_to(start)
        try:
            pack = Pack.of(pieces, kind, takes_positions=True)
            found = [*pack.shares(tape.run(pack.inputs, pack.members))]
            found += [rows for piece in pieces for rows in newest(piece)]
            tape.is_proved = same_bits([*right, *written], found)
        except Exception:  # noqa: BLE001 - the other way is always there
            tape.is_proved = False
        if not tape.is_proved:
            tape.differs()
        restore(pieces, after)

    def _packed(
        self,
        pieces: Sequence[Piece],
        kind: PackKind,
        verdict: Verdict,
        ops: RowOps | None,
        tape: PackTape | None = None,
    ) -> Sequence[torch.Tensor]:
        """Run one pack, or leave the caches as they were."""
        assert self._cache is not None
        assert kind.want != "head"
        pack = Pack.of(pieces, kind, takes_positions=self._runner.takes_positions)
        rows = RowPack(self._interfaces, self._cache, pack.members, kind.size)
        minded = self._modules.minded(kind.size, verdict.uneven, ops)
        writing = nullcontext() if tape is None else tape.writing(pack.inputs, kind.size)
        try:
            with minded, writing as recording, rows.running(ops, recording):
                outputs = self._runner.forward(
                    pack.x,
                    self._cache,
                    tokens=pack.tokens,
                    position_ids=pack.positions,
                    want=kind.want,
                )
                if recording is not None:
                    recording.output = outputs
        except BaseException:
            for member in pack.members:
                member.cache.crop_to(member.start)
            raise
        return pack.shares(outputs)

    def _compared(self, pieces: Sequence[Piece], kind: PackKind) -> list[torch.Tensor | Exception]:
        """Work both ways, remember whether they agree, and give what is right in any case."""
        starts = [piece.cache.seen for piece in pieces]
        before = [piece.cache.snapshot(piece.cache.seen) for piece in pieces]
        outputs = [self.alone(piece, kind.want) for piece in pieces]
        if any(isinstance(output, Exception) for output in outputs):
            return outputs
        after = [p.cache.snapshot(start) for p, start in zip(pieces, starts, strict=True)]
        written = [rows.clone() for piece in pieces for rows in newest(piece)]
        restore(pieces, before)
        ops = RowOps(kind.size, self._kernels)
        try:
            packed = self._packed_apart(pieces, kind, ops)
            found = [*packed, *(rows for piece in pieces for rows in newest(piece))]
            self._decide(kind, self._judged([*outputs, *written], found, ops))
        except NotPackable:
            self._decide(kind, _INEXACT)
        except Exception:  # noqa: BLE001 - such as no memory: until the next start it does without
            self._verdicts[kind] = _INEXACT
        restore(pieces, after)
        return outputs

    def _confirmed(
        self, pieces: Sequence[Piece], kind: PackKind, verdict: Verdict
    ) -> list[torch.Tensor | Exception]:
        """Run a pack of a kind that is remembered as exact, and the first piece alone as well."""
        first, start = pieces[0], pieces[0].cache.seen
        before = [piece.cache.snapshot(piece.cache.seen) for piece in pieces]
        alone = self.alone(first, kind.want)
        if isinstance(alone, Exception):
            return [alone, *(self.alone(piece, kind.want) for piece in pieces[1:])]
        after, written = first.cache.snapshot(start), [rows.clone() for rows in newest(first)]
        restore([first], before[:1])
        ops = RowOps(kind.size, self._kernels) if verdict.is_watched else None
        try:
            packed = [*self._packed(pieces, kind, verdict, ops)]
            is_same = same_bits([alone, *written], [packed[0], *newest(first)])
            if is_same:
                self._verdicts[kind] = verdict
                return [*packed]
            self._decide(kind, _INEXACT)
        except NotPackable:
            self._decide(kind, _INEXACT)
        except Exception:  # noqa: BLE001 - such as no memory: until the next start it does without
            self._verdicts[kind] = _INEXACT
        restore(pieces, [after, *before[1:]])
        return [alone, *(self.alone(piece, kind.want) for piece in pieces[1:])]

    def _decide(self, kind: PackKind, verdict: Verdict) -> None:
        """Keep what was found out, here and for the next start."""
        self._verdicts[kind] = verdict
        self._kept.put(kind, verdict)

    def _packed_apart(
        self, pieces: Sequence[Piece], kind: PackKind, ops: RowOps
    ) -> Sequence[torch.Tensor]:
        """Run a pack in an order that a model which counts positions itself would get wrong."""
        ends = [piece.cache.seen + piece.count for piece in pieces]
        if len(pieces) == 1 or ends[:-1] != [piece.cache.seen for piece in pieces[1:]]:
            return self._packed(pieces, kind, Verdict(True), ops)
        return self._packed(pieces[::-1], kind, Verdict(True), ops)[::-1]

    def _judged(self, left: Sequence[Any], right: Sequence[Any], ops: RowOps) -> Verdict:
        if not same_bits(left, right):
            return _INEXACT
        uneven = self._modules.of(ops.uneven)
        if uneven is None or ops.rounds_apart:
            return Verdict(True, is_watched=True)
        return Verdict(True, tuple(uneven))


def _may_pack(loaded: LoadedStage, interfaces: Interfaces) -> bool:
    """Leave out what one comparison could not judge.

    int8 kernels look for outliers in all rows at once, and some rotary tables grow with the
    longest position: rows then depend on each other, but only with some data or far on.
    """
    quantized = internals.declared_quantization(loaded.architecture.config)
    return (
        interfaces.attention in ("sdpa", "eager")
        and loaded.options.quantization != "int8"
        and quantized is None
        and _STEADY_ROTARY.issuperset(_rotary_types(loaded.model))
    )


def _rotary_types(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        named: Any = getattr(module, "rope_type", "default")
        yield from map(str, named.values() if isinstance(named, dict) else (named,))


@contextmanager
def _watched(ops: RowOps | None) -> Iterator[None]:
    if ops is None:
        yield
        return
    with ops:
        yield
