"""An event loop whose clock jumps, and a pipeline of stages behind links that is timed by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from orchestrator.request import GenerationRequest
from orchestrator.speculation.drafter import Drafter
from orchestrator.speculation.pass_costs import PassCosts
from orchestrator.speculation.speculated import Bounds, SpeculatedTokens
from worker.protocol.ops import SampledReply, Sampling

T = TypeVar("T")
MAX_ROWS = 16


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waits for nothing: where all tasks sleep, it is at once as late as the next one wakes."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    def time(self) -> float:
        """Return the seconds that would have gone by."""
        return self._now_s

    def _run_once(self) -> None:
        own: Any = self
        if not own._ready and own._scheduled:
            self._now_s = max(self._now_s, own._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]  # asyncio's own; the stubs leave it out


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on such a loop."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()


class LinkedStages:
    """Stages that each work on one pass at a time and get one of a request at a time.

    Args:
        links_s: round trip to each stage.
        work_s: of a stage, for one row.
        row_s: for each further row; of the first passes with up to 4 rows and with more, `work_s`.
    """

    def __init__(self, links_s: Sequence[float], work_s: float, row_s: float) -> None:
        self.links_s, self.work_s, self.row_s = links_s, work_s, row_s
        self.facts = SimpleNamespace(ready=[None] * len(links_s))
        self.costs = PassCosts(MAX_ROWS, lambda: sum(links_s))
        self._stages = [asyncio.Lock() for _ in links_s]
        self._turns = [asyncio.Lock() for _ in links_s]
        self._had: list[set[bool]] = [set() for _ in links_s]
        self._text: list[int] = []
        self._prompt_tokens = 0

    @property
    def plain_s(self) -> float:
        """What a pass of one row takes."""
        return sum(self.links_s) + self.work_s * len(self.links_s)

    async def answer_s(self, prompt: list[int], answer: list[int], drafter: Drafter) -> float:
        """Return how long the answer takes from its first token to its last."""
        self._text, self._prompt_tokens = [*prompt, *answer], len(prompt)
        lease: Any = SimpleNamespace(prompt=tuple(prompt), ops=(), name="r")
        request = GenerationRequest(request_id="r", prompt="x")
        pipeline: Any = self
        bounds = Bounds(len(self._text), frozenset())
        source = SpeculatedTokens(pipeline, request, lease, bounds, drafter, self.costs)
        got = [(await source.next()).token_id]
        begun_s = asyncio.get_running_loop().time()
        while len(got) < len(answer):
            got.append((await source.next()).token_id)
        took_s = asyncio.get_running_loop().time() - begun_s
        await source.aclose()
        assert got == answer
        return took_s

    async def run(self, rid: object, chunks: object, sampling: Sampling) -> SampledReply:
        """Read the prompt."""
        await asyncio.sleep(1)
        return SampledReply(token_id=self._text[self._prompt_tokens])

    async def forward(
        self, rid: object, tokens: Sequence[int], position: int, sampling: Sampling
    ) -> SampledReply:
        """Take one row through all stages."""
        return (await self.verify(rid, tokens, position, sampling))[-1]

    async def verify(
        self, rid: object, tokens: Sequence[int], position: int, sampling: Sampling
    ) -> tuple[SampledReply, ...]:
        """Take rows through all stages."""
        for stage, link_s in enumerate(self.links_s):
            async with self._turns[stage]:
                await asyncio.sleep(link_s / 2)
                # What has come to a stage is worked on, whatever becomes of it.
                await asyncio.shield(asyncio.ensure_future(self._work(stage, len(tokens))))
                await asyncio.sleep(link_s / 2)
        text = self._text
        is_right = [list(tokens[: i + 1]) == text[position:][: i + 1] for i in range(len(tokens))]
        return tuple(
            SampledReply(token_id=text[position + i + 1] if right else -1)
            for i, right in enumerate(is_right)
        )

    async def _work(self, stage: int, rows: int) -> None:
        async with self._stages[stage]:
            had, is_large = self._had[stage], rows > 4
            each_s = self.row_s if rows == 1 or is_large in had else self.work_s
            if rows > 1:
                had.add(is_large)
            await asyncio.sleep(self.work_s + each_s * (rows - 1))
