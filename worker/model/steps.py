"""Work on many positions as forwards of one position each would, bit for bit, and faster.

The positions may be of one request or of several. They are worked on in packs of a few sizes;
where fewer are left, the rest of a pack is rows that nobody uses: they cost little beside the
weights, which are read either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from worker.model.kv import StageCache
from worker.model.pack import PackKind, Piece, Want
from worker.model.packs import Packs
from worker.model.run import StageRunner
from worker.remembered import NOTHING, Remembered


@dataclass(frozen=True, eq=False)
class Steps:
    """Positions of one request, each to be worked on as by a forward of its own.

    Attributes:
        x: as `StageRunner.forward` takes it, with a batch of one.
        cache: what they are appended to.
        tokens: as there.
        choices: of how many of the last positions logits are wanted; of the last stage alone.
    """

    x: torch.Tensor
    cache: StageCache
    tokens: torch.Tensor | None = None
    choices: int = 0


@dataclass(frozen=True)
class StepOutputs:
    """What came out for one `Steps`, in order.

    Attributes:
        hidden: `[1, seq, width]` each, in the wire dtype.
        logits: `[seq, vocab]` each, in place of hidden states at the end: at least `choices`.
    """

    hidden: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


@dataclass(eq=False)
class _Work:
    steps: Steps
    outputs: StepOutputs = field(default_factory=StepOutputs)
    done: int = 0
    error: Exception | None = None

    @property
    def left(self) -> int:
        return 0 if self.error else int(self.steps.x.shape[1]) - self.done

    def wants(self, count: int) -> Want:
        """Return what is wanted of the next positions."""
        needs_logits = self.left - count < self.steps.choices
        return "row_logits" if needs_logits else "hidden"

    def take(self, count: int) -> Piece:
        """Return the next positions."""
        rows = slice(self.done, self.done + count)
        tokens = self.steps.tokens
        ids = None if tokens is None else tokens[:, rows]
        return Piece(self.steps.cache, self.steps.x[:, rows], ids)

    def put(self, result: torch.Tensor | Exception, count: int, want: Want) -> None:
        """Note what came out of them."""
        if isinstance(result, Exception):
            self.error = result
            return
        self.done += count
        (self.outputs.hidden if want == "hidden" else self.outputs.logits).append(result)


class StepRunner:
    """Runs positions in packs whose kernels give each row what it gets alone; see `Packs`.

    Args:
        runner: of the stage.
        remembered: what was found out about packs of such stages.
    """

    def __init__(self, runner: StageRunner, remembered: Remembered = NOTHING) -> None:
        self._runner = runner
        self.packs = Packs(runner, remembered)

    @property
    def max_rows(self) -> int:
        """Return how many positions one pass over the weights may serve."""
        return max(self.packs.sizes, default=1)

    @torch.inference_mode()
    def forward(
        self, x: torch.Tensor, cache: StageCache, *, tokens: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Append the positions of `x` to `cache`, each as one `StageRunner.forward` would.

        `x` and `tokens` are as there, with a batch of one. Returns the hidden states after the
        last own layer, `[1, seq, width]` in the wire dtype.

        Raises:
            Exception: as `StageRunner.forward`; the cache may hold some of the positions then.
        """
        (result,) = self.together([Steps(x, cache, tokens)])
        if isinstance(result, Exception):
            raise result
        return torch.cat(result.hidden, 1)

    @torch.inference_mode()
    def together(self, parts: Sequence[Steps]) -> list[StepOutputs | Exception]:
        """Append the positions of each part to its cache; no two parts share a cache.

        An exception stands in the place of the outputs of a part that fails, whose cache may then
        hold some of the positions.
        """
        work = [_Work(part) for part in parts]
        while alive := [each for each in work if each.left]:
            self._next(alive)
        return [each.error or each.outputs for each in work]

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply what follows the last layer: `[1, rows, width]` to logits `[rows, vocab]`."""
        packs = [self.packs.head(rows) for rows in hidden.split(max(self.max_rows, 1), 1)]
        return packs[0] if len(packs) == 1 else torch.cat(packs)

    def _next(self, alive: Sequence[_Work]) -> None:
        """Work on as many positions as one pack takes."""
        # models treat an empty cache in ways of their own
        opening = next((each for each in alive if not each.steps.cache.seen), None)
        shares = None if opening else self._shares(alive)
        if shares is None:
            one = opening or alive[0]
            one.put(self.packs.alone(one.take(1), one.wants(1)), 1, one.wants(1))
            return
        kind, taken = shares
        pieces = [each.take(count) for each, count in taken]
        want: Want = "hidden" if kind.want == "hidden" else "row_logits"
        for (each, count), result in zip(taken, self.packs.run(pieces, kind), strict=True):
            each.put(result, count, want)

    def _shares(self, alive: Sequence[_Work]) -> tuple[PackKind, list[tuple[_Work, int]]] | None:
        """Return the next pack and how many positions of each part it takes; None is no pack."""
        # where a model counts positions itself, they must follow each other, to the last row
        counts_itself = not self._runner.takes_positions
        given = alive[:1] if counts_itself else alive
        left = sum(each.left for each in given)
        for size in self._sizes(left, fits=counts_itself):
            taken = list(_filled(given, size))
            wants = {each.wants(count) for each, count in taken}
            want: Want = "row_logits" if "row_logits" in wants else "hidden"
            kind = PackKind(size, len(taken) > 1, want)
            if self.packs.may_run(kind):
                return kind, taken
        return None

    def _sizes(self, left: int, *, fits: bool) -> list[int]:
        """Return the sizes of packs to think of for `left` rows, the best first."""
        if left < 2:
            return []
        within = [size for size in self.packs.sizes if size <= left]
        above = [size for size in self.packs.sizes if size > left]
        if fits or not above or left in within:
            return within[::-1]
        return [above[0], *within[::-1]]


def _filled(given: Sequence[_Work], size: int) -> Iterator[tuple[_Work, int]]:
    for each in given:
        count = min(each.left, size)
        if not count:
            return
        yield each, count
        size -= count
