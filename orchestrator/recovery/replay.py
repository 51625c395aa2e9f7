"""Send a stage again what it was sent, so that its KV caches come out bit for bit the same."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.chunk import Chunk
from orchestrator.failures import OpRejected, StageFailure
from orchestrator.pipeline_facts import PipelineFacts
from orchestrator.recovery.history import Entry, History
from orchestrator.stage import StageClient
from worker.protocol.capabilities import Capability
from worker.protocol.encodings import Encoding
from worker.protocol.ops import HiddenReply, Release, RequestId

# Rows of decode steps in one op: the worker packs as many as its kernels allow, and an answer
# that comes back in bounded time shows that it lives.
MOST_ROWS = 64

Through = Callable[[RequestId, Chunk, int], Awaitable[HiddenReply]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """How much was replayed."""

    requests: int = 0
    positions: int = 0


class Replay:
    """Rebuild KV caches on one stage.

    Args:
        stage: index of the stage.
        num_stages: stages of the pipeline.
        history: what was sent.
        through: runs a chunk through the stages before an index and returns what comes out.
        release: has a request freed on the stages before; does not wait for it.
        facts: what the stages together are.
    """

    def __init__(
        self,
        stage: int,
        num_stages: int,
        history: History,
        *,
        through: Through,
        release: Callable[[RequestId], None],
        facts: Callable[[], PipelineFacts],
    ) -> None:
        self._stage = stage
        self._is_last = stage == num_stages - 1
        self._history = history
        self._through = through
        self._release = release
        self._facts = facts
        self._names = itertools.count()

    async def all(self, client: StageClient) -> Replayed:
        """Rebuild every live request's cache, one after another.

        A request that cannot be rebuilt, because a stage before is lost or refuses it, is left
        without a cache: its own next op fails by that, and the others go on.

        Raises:
            StageFailure: this stage is lost.
        """
        rebuilt: dict[RequestId, int] = {}
        for rid in self._history.rids(self._stage):
            try:
                rebuilt[rid] = await self.one(rid, client)
            except (StageFailure, OpRejected):
                if client.failure is not None:
                    raise client.failure from None
                await client.call(Release(request_id=rid))
        # Those that have ended meanwhile were not told to a stage that did not serve yet.
        while ended := [rid for rid in rebuilt if not self._history.entries(self._stage, rid)]:
            for rid in ended:
                del rebuilt[rid]
                await client.call(Release(request_id=rid))
        return Replayed(len(rebuilt), sum(rebuilt.values()))

    async def one(self, rid: RequestId, client: StageClient) -> int:
        """Rebuild one request's cache; return its positions.

        Raises:
            StageFailure: this stage or one before is lost.
            OpRejected: one of them refuses it.
        """
        entries = self._history.entries(self._stage, rid)
        if not entries:
            return 0
        ready = client.ready
        assert ready is not None, "only a stage that serves can be sent a replay"
        packs = Capability.AS_STEPS in ready.capabilities
        if self._stage and any(entry.hidden is None for entry in entries):
            await self._from_tokens(rid, entries, client)
        else:
            for entry in packed(entries) if packs else entries:
                await self._send(rid, entry, client)
        return entries[-1].chunk.end

    async def _from_tokens(
        self, rid: RequestId, entries: Sequence[Entry], client: StageClient
    ) -> None:
        """Compute the hidden states again, on the stages before, in the same chunks.

        They do so under a name of their own: the request's caches there are as they should be,
        and may be ahead of this stage's.
        """
        name = f"stageline:replay-{self._stage}-{next(self._names)}"
        self._history.keep_thin(name)
        bare = [replace(entry, hidden=None) for entry in entries]
        packs = Capability.AS_STEPS in self._facts().shared_capabilities
        try:
            for entry in packed(bare) if packs else bare:
                hidden = await self._through(name, entry.chunk, self._stage)
                await self._send(rid, replace(entry, hidden=hidden), client)
        finally:
            self._release(name)

    async def _send(self, rid: RequestId, entry: Entry, client: StageClient) -> None:
        chunk, hidden, with_tokens = entry.chunk, entry.hidden, self._facts().needs_tokens
        if self._stage == 0:
            await client.call(chunk.first_op(rid))
            return
        assert hidden is not None, "a later stage is fed with hidden states"
        if self._is_last:
            await client.call(chunk.last_op(rid, hidden, None, with_tokens=with_tokens))
        else:
            await client.call(chunk.middle_op(rid, hidden, with_tokens=with_tokens))


def packed(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Join runs of decode steps that follow each other; every other chunk stays as it was."""
    run: list[Entry] = []
    for entry in entries:
        if run and not (_follows(run[-1], entry) and len(run) < MOST_ROWS):
            yield _joined(run)
            run = []
        run.append(entry)
    if run:
        yield _joined(run)


def _follows(before: Entry, entry: Entry) -> bool:
    return (
        _is_row(before) and _is_row(entry) and before.chunk.end == entry.chunk.position
    ) and _form(before) == _form(entry)


def _is_row(entry: Entry) -> bool:
    """Tell whether it is one decode step whose hidden states are the bytes of one row."""
    one_row, hidden = entry.chunk.is_step and not entry.chunk.as_steps, entry.hidden
    if hidden is None or not one_row:
        return one_row
    shape = hidden.hidden_shape
    return (shape is None or shape[:2] == (1, 1)) and Encoding(hidden.hidden_encoding).is_by_row


def _form(entry: Entry) -> tuple[str, str] | None:
    hidden = entry.hidden
    return None if hidden is None else (hidden.hidden_dtype, hidden.hidden_encoding)


def _joined(run: Sequence[Entry]) -> Entry:
    if len(run) == 1:
        return run[0]
    first = run[0]
    tokens = tuple(itertools.chain.from_iterable(entry.chunk.tokens for entry in run))
    chunk = Chunk(tokens, first.chunk.position, as_steps=True)
    if first.hidden is None:
        return Entry(chunk, None)
    rows = b"".join(base64.b64decode(entry.hidden.hidden_b64) for entry in run if entry.hidden)
    shape = first.hidden.hidden_shape
    hidden = replace(
        first.hidden,
        seq_len=len(run),
        hidden_shape=None if shape is None else (1, len(run), *shape[2:]),
        hidden_b64=base64.b64encode(rows),
    )
    return Entry(chunk, hidden)
