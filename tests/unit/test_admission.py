"""Which steps go together: a fair share each, of those that are here or about to be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from orchestrator.chunk import Chunk
from orchestrator.scheduler.admission import Admission
from orchestrator.scheduler.job import Job
from orchestrator.scheduler.pace import Pace
from worker.protocol.ops import Sampling


class Room:
    """An admission before some stages, and the sizes of the groups that it sent."""

    def __init__(self, stages: int, *, most_rows: int = 16, step_s: float = 0.0) -> None:
        paces = [Pace() for _ in range(stages)]
        paces[0].step_s = step_s
        self.looked_again = asyncio.Event()
        self.groups: list[Sequence[Job]] = []
        self.admission = Admission(
            paces,
            most_rows=lambda: most_rows,
            send=self.groups.append,
            look_again=self.looked_again.set,
        )
        self._jobs: list[Job] = []

    def come(self, *rids: str, rows: int = 1) -> None:
        """Let steps come."""
        for rid in rids:
            chunk = Chunk((7,) * rows, 5, as_steps=rows > 1)
            number = len(self._jobs)
            job = Job(rid, chunk, Sampling(), each=False, timeout_s=None, number=number, ahead=None)
            self.admission.came(job)
            self._jobs.append(job)

    def sent(self) -> list[str]:
        """Let all go that may, and return what went in this moment: `ab` is a group of two."""
        before = {job for job in self._jobs if job.has_turn}
        sent = []
        while True:
            count = len(self.groups)
            if not self.admission.grant():
                return sent
            if len(self.groups) > count:
                sent.append("".join(str(job.rid) for job in self.groups[-1]))
            else:
                alone = [job for job in self._jobs if job.has_turn and job not in before]
                before.update(alone)
                sent.append("".join(str(job.rid) for job in alone))

    def answer(self, *rids: str) -> None:
        """Let one group, or a step alone, be answered."""
        for job in [job for job in self._jobs if job.rid in rids]:
            self._jobs.remove(job)
            job.go_alone()
            self.admission.ended(job)
            self.admission.presence.was_answered(job.rid)
        self.admission.under_way -= 1


@pytest.mark.parametrize(
    ("stages", "requests", "groups"),
    [
        (1, "abcde", ["abcde"]),
        (2, "abcde", ["abc", "de"]),
        (4, "abcde", ["ab", "c", "d", "e"]),
        (4, "abc", ["a", "b", "c"]),
        (1, "a", ["a"]),
    ],
)
def test_as_many_groups_as_stages_share_the_requests(
    stages: int, requests: str, groups: list[str]
) -> None:
    async def act() -> list[str]:
        room = Room(stages)
        room.come(*requests)
        return room.sent()

    assert asyncio.run(act()) == groups


def test_more_groups_than_keep_the_stages_busy_are_not_under_way() -> None:
    async def act() -> list[list[str]]:
        room = Room(2)
        room.come("a", "b")
        first = room.sent()
        room.come("c", "d")
        none = room.sent()
        room.answer("a")
        room.come("a")
        return [first, none, room.sent()]

    assert asyncio.run(act()) == [["a", "b"], [], ["cd"]]


def test_a_group_waits_for_those_that_were_given_a_token_a_moment_ago() -> None:
    async def act() -> list[list[str]]:
        room = Room(1, step_s=10.0)
        room.come("a", "b", "c")
        first = room.sent()
        room.answer("a", "b", "c")
        room.come("b")
        waits = room.sent()
        room.come("a", "c")
        return [first, waits, room.sent()]

    assert asyncio.run(act()) == [["abc"], [], ["bac"]]


def test_a_slow_reader_is_waited_for_once() -> None:
    async def act() -> list[list[str]]:
        room = Room(1, step_s=0.2)
        room.come("a", "b")
        found = [room.sent()]
        room.answer("a", "b")
        room.come("a")
        found.append(room.sent())
        await asyncio.wait_for(room.looked_again.wait(), 10)
        found.append(room.sent())
        room.come("b")  # late
        room.answer("a")
        room.come("a")
        found.append(room.sent())
        room.answer("a", "b")
        room.come("a")
        found.append(room.sent())
        room.answer("a")
        room.come("b", "a")  # b is quick
        found.append(room.sent())
        room.answer("a", "b")
        room.come("a")
        found.append(room.sent())
        return found

    assert asyncio.run(act()) == [["ab"], [], ["a"], ["ba"], ["a"], ["ba"], []]


def test_no_group_has_too_many_rows_or_a_request_twice() -> None:
    async def act() -> list[str]:
        room = Room(1, most_rows=6)
        room.come("a", "b", "c", rows=3)
        room.come("d", "a", "e")
        found = room.sent()
        while room.admission.waiting:
            room.admission.under_way = 0
            found += room.sent()
        return found

    assert asyncio.run(act()) == ["ab", "cdae"]


def test_one_that_goes_alone_takes_none_with_it() -> None:
    async def act() -> list[str]:
        room = Room(3)
        room.come("a", "b", "c", "d")
        room.admission.waiting[0].goes_alone = True
        return room.sent()

    assert asyncio.run(act()) == ["a", "bc", "d"]
