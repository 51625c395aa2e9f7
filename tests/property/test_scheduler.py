"""Whatever comes together, is cut short or gets lost: each request has the tokens it has alone."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.chunk import Chunk
from tests.support.history_chain import expected_tokens
from tests.support.scheduler_lab import Lab
from worker.protocol.capabilities import Capability
from worker.protocol.ops import SampledReply, Sampling


@dataclass(frozen=True, slots=True)
class Client:
    """What one request does.

    Attributes:
        prompt_tokens: length of its prompt.
        prefill_chunk: of its chunks.
        new_tokens: length of its answer.
        guesses: rows of each op of decode steps; several of these are under way at once.
        starts: turns of the event loop before it comes.
        leaves: turns after which it is cancelled, if it is not done by then.
    """

    prompt_tokens: int
    prefill_chunk: int
    new_tokens: int
    guesses: int
    starts: int
    leaves: int | None

    def prompt(self, name: str) -> str:
        """Return its prompt."""
        return (name + "x" * self.prompt_tokens)[: self.prompt_tokens]

    def expected(self, name: str, num_stages: int) -> list[int]:
        """Return its answer when nothing disturbs it."""
        return expected_tokens(
            self.prompt(name),
            num_stages=num_stages,
            prefill_chunk=self.prefill_chunk,
            max_new_tokens=self.new_tokens,
        )


CLIENTS = st.lists(
    st.builds(
        Client,
        prompt_tokens=st.integers(1, 12),
        prefill_chunk=st.sampled_from([2, 3, 50]),
        new_tokens=st.integers(1, 9),
        guesses=st.sampled_from([1, 1, 2, 3]),
        starts=st.integers(0, 40),
        leaves=st.none() | st.integers(1, 200),
    ),
    min_size=1,
    max_size=7,
)


async def plain(lab: Lab, client: Client, rid: str, ids: list[int]) -> list[int]:
    """Decode step by step."""
    reply = await prefilled(lab, client, rid, ids)
    while True:
        assert reply.token_id is not None
        ids.append(reply.token_id)
        if len(ids) == client.prompt_tokens + client.new_tokens:
            return ids[client.prompt_tokens :]
        chunk = Chunk((ids[-1],), len(ids) - 1)
        reply = await lab.scheduler.forward(rid, chunk, Sampling())


async def prefilled(lab: Lab, client: Client, rid: str, ids: list[int]) -> SampledReply:
    size = client.prefill_chunk
    chunks = [Chunk(tuple(ids[at : at + size]), at) for at in range(0, len(ids), size)]
    return await lab.scheduler.prefill(rid, chunks, Sampling())


async def guessing(
    lab: Lab, client: Client, rid: str, ids: list[int], answer: list[int], luck: random.Random
) -> list[int]:
    """Have guessed tokens checked, several ops under way; what follows a wrong one is cancelled."""
    first = (await prefilled(lab, client, rid, ids)).token_id
    assert first is not None
    ids.append(first)
    end = client.prompt_tokens + client.new_tokens
    while len(ids) < end:
        right = answer[len(ids) - client.prompt_tokens :]
        guesses = [token if luck.random() < 0.8 else (token + 1) % 100 for token in right]
        rows = [ids[-1], *guesses]
        tasks = []
        for start in range(0, len(rows), client.guesses):
            part, at = tuple(rows[start : start + client.guesses]), len(ids) - 1 + start
            chunk = Chunk(part, at, as_steps=len(part) > 1)
            asked = lab.scheduler.forward(rid, chunk, Sampling(), each=chunk.as_steps)
            tasks.append(asyncio.create_task(asked))
        try:
            for task in tasks:
                if not accept(ids, rows, await task):
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return ids[client.prompt_tokens : end]


def accept(ids: list[int], rows: list[int], reply: SampledReply) -> bool:
    """Take the tokens of an op up to the first that was guessed wrong; tell whether none was."""
    for step in reply.steps or ({"token_id": reply.token_id},):
        ids.append(step["token_id"])
        rows.pop(0)
        if not rows or rows[0] != ids[-1]:
            return False
    return True


async def play(
    lab: Lab, clients: list[Client], luck: random.Random
) -> tuple[list[list[int] | None], dict[str, int]]:
    """Return each client's answer, None where it left, and what was left behind."""
    num_stages = len(lab.seats)
    serving = [asyncio.create_task(seat.serve()) for seat in lab.seats]

    async def one(client: Client, name: str) -> list[int] | None:
        ids = [ord(character) % 100 for character in client.prompt(name)]
        answer = client.expected(name, num_stages)
        for _ in range(client.starts):
            await asyncio.sleep(0)
        if client.guesses > 1:
            work = guessing(lab, client, name, ids, answer, luck)
        else:
            work = plain(lab, client, name, ids)
        task = asyncio.create_task(work)
        if client.leaves is not None:
            for _ in range(client.leaves):
                await asyncio.sleep(0)
            task.cancel()
        got = None
        with contextlib.suppress(asyncio.CancelledError):
            got = await task
        await lab.release(name)
        return got

    try:
        async with asyncio.timeout(20):
            got = await asyncio.gather(*(one(client, f"{i}") for i, client in enumerate(clients)))
        left = lab.left_over()
    finally:
        await lab.scheduler.aclose()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
    return got, left


@given(
    clients=CLIENTS,
    num_stages=st.integers(1, 3),
    joins=st.sampled_from([True, True, False]),
    loses=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1 << 30),
)
def test_every_request_gets_what_it_gets_alone(
    clients: list[Client], num_stages: int, joins: bool, loses: float, seed: int
) -> None:
    luck = random.Random(seed)
    capabilities = [Capability.TOGETHER] if joins else []
    lab = Lab(num_stages, luck, loses=loses, capabilities=capabilities)
    got, left = asyncio.run(play(lab, clients, luck))
    expected = [
        answer if answer is None else client.expected(f"{i}", num_stages)
        for i, (client, answer) in enumerate(zip(clients, got, strict=True))
    ]
    stayed = [answer for client, answer in zip(clients, got, strict=True) if client.leaves is None]
    assert (got, None in stayed, set(left.values())) == (expected, False, {0})
