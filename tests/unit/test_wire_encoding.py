"""Which encoding a stage is asked for, what it makes of one, and what a replay may join."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import torch

from orchestrator.chunk import Chunk
from orchestrator.failures import NotReady, PipelineMismatch
from orchestrator.recovery.history import Entry
from orchestrator.recovery.likeness import check_likeness
from orchestrator.recovery.replay import packed
from orchestrator.wire_encoding import AUTO, SLOW_BYTES_S, WireEncoding
from tests.support.history_backend import HIDDEN_DIM, HistoryBackend
from tests.support.stages import stub_spec
from worker.backends.transformers.row_int8 import RowInt8
from worker.handlers import Handlers
from worker.protocol.encodings import Encoding
from worker.protocol.ops import EmbedAndForward, ForwardRange, HiddenReply
from worker.protocol.ready import Ready
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch

BF16, PLANES, INT8 = map(str, Encoding)
PREFILL, STEP, VERIFIED = Chunk((1, 2), 0), Chunk((1,), 2), Chunk((1, 2), 3, as_steps=True)
ALL = (BF16, PLANES, INT8)


def ready(*encodings: str) -> Ready:
    return Ready(
        pid=1,
        protocol_version="1.0",
        version="1",
        layer_range=(0, 4),
        total_blocks=8,
        hidden_dim=4,
        vocab_size=9,
        encodings=encodings,
    )


def chosen(asked: str, rate: float | None, *stages: Ready) -> list[str]:
    choice = WireEncoding(asked, ["a", "b", "c"], stages or (ready(*ALL),) * 2)
    return [choice.of(chunk, lambda: rate) for chunk in (PREFILL, STEP, VERIFIED)]


@pytest.mark.parametrize(
    ("asked", "rate", "prefill", "steps"),
    [
        (AUTO, None, BF16, BF16),
        (AUTO, SLOW_BYTES_S * 1.01, BF16, BF16),
        (AUTO, SLOW_BYTES_S, PLANES, BF16),
        (BF16, 1.0, BF16, BF16),
        (PLANES, None, PLANES, BF16),
        (INT8, None, INT8, INT8),
    ],
)
def test_exact_packing_is_for_prefill_and_a_lossy_encoding_for_everything(
    asked: str, rate: float | None, prefill: str, steps: str
) -> None:
    assert chosen(asked, rate) == [prefill, steps, steps]


@pytest.mark.parametrize(
    "stages", [(ready(*ALL),), (ready(*ALL), ready(BF16))], ids=["one stage", "one cannot"]
)
def test_nothing_is_packed_where_there_is_no_link_or_an_end_cannot(
    stages: tuple[Ready, ...],
) -> None:
    assert chosen(AUTO, 1.0, *stages) == [BF16] * 3


def test_an_encoding_that_a_stage_does_not_know_is_refused() -> None:
    with pytest.raises(PipelineMismatch) as caught:
        chosen(INT8, None, ready(*ALL), ready(BF16, PLANES))
    assert str(caught.value) == (
        "stage 1 on b knows the wire encodings bf16, bf16-planes-zstd, --wire-encoding asks for "
        "int8-row-top8; choose one that every stage knows (bf16-planes-zstd needs the package "
        "zstandard there, which orchestrator setup installs)"
    )


def test_a_stage_that_knows_fewer_encodings_cannot_take_over() -> None:
    with pytest.raises(NotReady, match="does not know the wire encoding bf16-planes-zstd"):
        check_likeness(stub_spec(), ready(*ALL), ready(BF16, INT8), bits_matter=False)


def entry(position: int, encoding: str, data: bytes) -> Entry:
    text = base64.b64encode(data)
    return Entry(
        Chunk((7,), position), HiddenReply(seq_len=1, hidden_encoding=encoding, hidden_b64=text)
    )


def test_a_replay_joins_int8_rows_into_what_their_rows_together_are() -> None:
    rows = torch.randn(3, 32).bfloat16()
    encode = RowInt8().encode
    alone = [entry(5 + i, INT8, encode(data(rows[i]), 32)) for i in range(3)]
    (joined,) = packed(alone)
    assert joined == Entry(
        Chunk((7, 7, 7), 5, as_steps=True),
        HiddenReply(
            seq_len=3,
            hidden_encoding=INT8,
            hidden_b64=base64.b64encode(encode(data(rows), 32)),
        ),
    )


def test_a_replay_joins_neither_other_encodings_nor_packed_rows() -> None:
    entries = [entry(5 + i, name, b"") for i, name in enumerate((PLANES, PLANES, BF16, INT8))]
    assert list(packed(entries)) == entries


def data(rows: torch.Tensor) -> bytes:
    octets: bytes = rows.contiguous().view(torch.uint8).numpy().tobytes()
    return octets


def refusal(request: Any) -> tuple[ErrorCode, str]:
    own = StageSlice(0, 2, 6) if isinstance(request, EmbedAndForward) else StageSlice(2, 4, 6)
    backend = HistoryBackend(own)
    handlers = Handlers(own, backend, Sessions(backend.new_cache, 9, None, lambda rid, freed: None))
    with pytest.raises(ProtocolError) as caught:
        handlers.handle(request, Stopwatch())
    return caught.value.code, caught.value.text


UNKNOWN = "this stage knows bf16, bf16-planes-zstd: use one of the `encodings` of its ready line"
UNREADABLE = "its zstd frame cannot be read: error when determining content size"


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            EmbedAndForward(tokens=(1,), reply_encoding=INT8),
            f"reply_encoding is 'int8-row-top8', {UNKNOWN}",
        ),
        (
            ForwardRange(position=0, seq_len=1, hidden_encoding=INT8, hidden_b64=b""),
            f"hidden_encoding is 'int8-row-top8', {UNKNOWN}",
        ),
        (
            ForwardRange(position=0, seq_len=1, hidden_encoding=PLANES, hidden_b64=b"AAAA"),
            f"hidden_b64 is no bf16-planes-zstd of {2 * HIDDEN_DIM} bytes: {UNREADABLE}",
        ),
    ],
    ids=["reply", "request", "damaged"],
)
def test_what_a_stage_cannot_encode_or_decode_is_refused(request_: Any, text: str) -> None:
    pytest.importorskip("zstandard")
    assert refusal(request_) == (ErrorCode.BAD_FIELD, text)
