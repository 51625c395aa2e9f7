"""Which neighbouring stages are linked now; links are made, and made again where they are lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.failures import OpRejected, StageFailure
from orchestrator.links.make import are_apart, make_link
from orchestrator.links.names import CHAIN, STAR
from orchestrator.specs import StageSpec
from orchestrator.stage import StageClient
from worker.protocol.capabilities import Capability
from worker.protocol.ready import Ready

# Of one pair of processes; then it stays as it is until one of them is another.
_MOST_TRIES = 3


class Place(Protocol):
    """Where a stage serves; see `orchestrator.recovery.seat.Seat`."""

    spec: StageSpec
    ready: Ready | None

    @property
    def client(self) -> StageClient:
        """The newest stage; it may be lost."""

    @property
    def is_serving(self) -> bool:
        """Whether a stage serves here at this moment."""


@dataclass(slots=True)
class _Link:
    """What is known of the link between two processes."""

    ends: tuple[StageClient, StageClient] | None = None
    tries: int = 0
    is_live: bool = False
    making: asyncio.Task[None] | None = None


class Links:
    """The links of one pipeline.

    Every op that goes over a link can go by way of the orchestrator as well: a stage that has
    worked on it goes back and does so again. So links are for stages that can go back.

    Args:
        places: of the stages.
        asked: `STAR` makes no links; `CHAIN` all; `AUTO` those between different hosts, and says
            nothing where one cannot be made.
        on_notice: takes lines for the user.
    """

    def __init__(
        self, places: Sequence[Place], asked: str, on_notice: Callable[[str], None]
    ) -> None:
        self._places = places
        self._asked = asked
        self._on_notice = on_notice
        self._links = [_Link() for _ in places[1:]]
        self._names = itertools.count()
        self._wanted = [False] * len(self._links)
        self._are_wanted = False  # Every op asks.

    @property
    def are_wanted(self) -> bool:
        """Whether there are, or may yet be, any links."""
        return self._are_wanted

    @property
    def live(self) -> tuple[bool, ...]:
        """For each stage but the last, whether it hands hidden states straight on."""
        return tuple(self._is_live(index) for index in range(len(self._links)))

    async def open(self) -> None:
        """Make the links that are wanted; one that cannot be made is done without."""
        self._wanted = self._wishes()
        self._are_wanted = any(self._wanted)
        await asyncio.gather(
            *(self._make(i) for i, is_wanted in enumerate(self._wanted) if is_wanted)
        )

    def end_of(self, start: int) -> int:
        """Return the last stage that hidden states get to from a stage without coming here."""
        end = start
        while end < len(self._links) and self._is_live(end):
            end += 1
        if end < len(self._links):
            self._again(end)
        return end

    def broke(self, start: int, end: int) -> None:
        """Hear that hidden states got lost between two stages; make the links there again."""
        for index in range(start, end):
            self._links[index].is_live = False
            self._again(index)

    async def aclose(self) -> None:
        """Make no more links."""
        self._wanted = [False] * len(self._links)
        self._are_wanted = False
        tasks = [link.making for link in self._links if link.making is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wishes(self) -> list[bool]:
        if self._asked == STAR:
            return [False] * len(self._links)
        stages = [(place.spec, place.ready) for place in self._places]
        cannot = [
            spec.title
            for spec, ready in stages
            if ready is None or not {Capability.CHAIN, Capability.CROP} <= set(ready.capabilities)
        ]
        if cannot and self._links:
            if self._asked == CHAIN:
                self._on_notice(
                    f"{cannot[0]} cannot be linked (it needs the program openssl, and a model "
                    "whose state can go back); hidden states go by way of this host"
                )
            return [False] * len(self._links)
        return [
            self._asked == CHAIN or are_apart(before.spec, after.spec)
            for before, after in itertools.pairwise(self._places)
        ]

    def _is_live(self, index: int) -> bool:
        link = self._links[index]
        return link.is_live and link.ends == self._ends(index) and self._serve(index)

    def _ends(self, index: int) -> tuple[StageClient, StageClient]:
        return self._places[index].client, self._places[index + 1].client

    def _serve(self, index: int) -> bool:
        return self._places[index].is_serving and self._places[index + 1].is_serving

    def _again(self, index: int) -> None:
        """Make a link in a task, unless that is under way or vain."""
        link = self._links[index]
        if not self._wanted[index] or link.making is not None or not self._serve(index):
            return
        if link.ends == self._ends(index) and link.tries >= _MOST_TRIES:
            return
        link.making = asyncio.create_task(self._make(index))
        link.making.add_done_callback(lambda _: self._made(link))

    def _made(self, link: _Link) -> None:
        link.making = None

    async def _make(self, index: int) -> None:
        link, ends = self._links[index], self._ends(index)
        if link.ends != ends:
            link.ends, link.tries = ends, 0
        link.tries += 1
        try:
            await make_link(*ends, self._names)
        except (StageFailure, ConnectionError):
            return  # It is made again with the stage that comes after it.
        except OpRejected as rejected:
            if self._asked == CHAIN and link.tries in (1, _MOST_TRIES):
                self._on_notice(
                    f"stages {index} and {index + 1} have no direct link ({rejected.text})"
                )
            return
        link.is_live = True
