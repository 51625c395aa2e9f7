"""Any mix and order of requests in a `together` is those requests one after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chain import Stage
from tests.support.history_backend import BREAKS, EXHAUSTS, HIDDEN_DIM, HistoryBackend
from tests.support.tiny import tiny_checkpoint
from worker.backends.stub import StubBackend
from worker.handlers import Handlers
from worker.protocol.codec import ErrorReply
from worker.protocol.ops import DecodeStep, EmbedAndForward, ForwardAndSample, Reply, Request
from worker.protocol.payload import encode_base64
from worker.protocol.stage import StageSlice
from worker.protocol.together import join_requests, split_replies
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch

FIRST, LAST = StageSlice(0, 64, 128), StageSlice(64, 128, 128)
NAMES = range(5)
torch.set_num_threads(1)


def stage_of(kind: type[Any], own: StageSlice) -> Handlers[Any]:
    backend = kind(own)
    return Handlers(own, backend, Sessions(backend.new_cache, 9, None, lambda rid, freed: None))


def told(handlers: Handlers[Any], request: Request[Any]) -> Reply | ErrorReply:
    """Work on one request alone, as the worker's loop does."""
    try:
        return handlers.handle(request, Stopwatch())
    except Exception as error:  # noqa: BLE001 - as the loop does
        problem = handlers.failures.told(request, error)[0]
        return ErrorReply(request.request_id, problem.text, str(problem.code))


def all_told(
    handlers: Handlers[Any], requests: list[Request[Any]], *, together: bool
) -> dict[Any, Reply | ErrorReply]:
    if not together:
        return {request.request_id: told(handlers, request) for request in requests}
    reply: Any = handlers.handle(join_requests("group", requests), Stopwatch())
    names = [request.request_id for request in requests]
    return dict(zip(names, split_replies(requests, reply), strict=True))


TOKENS = st.one_of(st.integers(0, 40), st.sampled_from([BREAKS, EXHAUSTS, 100]))
STEPS = st.builds(DecodeStep, token_id=TOKENS, position=st.integers(0, 12))
EMBEDS = st.builds(
    EmbedAndForward,
    tokens=st.lists(TOKENS, min_size=1, max_size=5).map(tuple),
    position=st.integers(0, 12),
    as_steps=st.booleans(),
)
PADDED = st.builds(
    EmbedAndForward,
    tokens=st.just((1, 2, 3, 4)),
    batch=st.just(2),
    attention_mask_b64=st.just(encode_base64(b"\0\1\1\1")),
    position=st.sampled_from([0, 2]),
)


def rounds_of(one: st.SearchStrategy[Request[Any]]) -> st.SearchStrategy[list[list[Request[Any]]]]:
    """Give rounds of requests, each of another session."""
    names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True)
    named = names.flatmap(
        lambda drawn: st.tuples(*(one for _ in drawn)).map(
            lambda made: [replace(r, request_id=n) for r, n in zip(made, drawn, strict=True)]
        )
    )
    return st.lists(named, min_size=1, max_size=5)


@given(rounds=rounds_of(st.one_of(STEPS, EMBEDS, EMBEDS, PADDED)))
@settings(max_examples=60)
@pytest.mark.parametrize("kind", [StubBackend, HistoryBackend])
def test_a_first_stage_gives_what_it_gives_one_by_one(
    kind: type[Any], rounds: list[list[Request[Any]]]
) -> None:
    packed, singly = stage_of(kind, FIRST), stage_of(kind, FIRST)
    for requests in rounds:
        assert all_told(packed, requests, together=True) == all_told(
            singly, requests, together=False
        )


SUPPRESSING = st.sampled_from([None, tuple(range(100))])
WIDTHS = {StubBackend: 32, HistoryBackend: HIDDEN_DIM * 2}


@st.composite
def choices_of(draw: st.DrawFn, row_bytes: int) -> ForwardAndSample:
    rows, as_steps = draw(st.integers(1, 4)), draw(st.booleans())
    return ForwardAndSample(
        position=draw(st.integers(0, 8)),
        seq_len=rows,
        as_steps=as_steps,
        sample_steps=as_steps and draw(st.booleans()),
        sample=draw(st.booleans()),
        suppress_tokens=draw(SUPPRESSING),
        hidden_b64=encode_base64(
            draw(st.binary(min_size=row_bytes * rows, max_size=row_bytes * rows))
        ),
    )


@given(data=st.data())
@settings(max_examples=60)
@pytest.mark.parametrize("kind", [StubBackend, HistoryBackend])
def test_a_last_stage_gives_what_it_gives_one_by_one(kind: type[Any], data: st.DataObject) -> None:
    packed, singly = stage_of(kind, LAST), stage_of(kind, LAST)
    for requests in data.draw(rounds_of(choices_of(WIDTHS[kind]))):
        assert all_told(packed, requests, together=True) == all_told(
            singly, requests, together=False
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("together"), "llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def stages(model: Path) -> list[Stage]:
    """Two workers of the same layers, whose packs have been tried alike."""
    return [Stage(model, 0, 1, max_context=64, threads=1) for _ in range(2)]


REAL = st.one_of(
    st.builds(DecodeStep, token_id=st.integers(0, 150), position=st.integers(0, 12)),
    st.builds(
        EmbedAndForward,
        tokens=st.lists(st.integers(0, 165), min_size=1, max_size=5).map(tuple),
        position=st.integers(0, 12),
        as_steps=st.booleans(),
    ),
)


@given(rounds=rounds_of(REAL))
@settings(max_examples=12, deadline=None)
def test_a_real_model_gives_what_it_gives_one_by_one(
    stages: list[Stage], rounds: list[list[Request[Any]]]
) -> None:
    for stage in stages:
        for name in NAMES:
            stage.sessions.release(name)
            stage.call(EmbedAndForward(request_id=name, tokens=(5, 6, 7 + name)))
    for requests in rounds:
        packed = all_told(stages[0].handlers, requests, together=True)
        assert packed == all_told(stages[1].handlers, requests, together=False)
