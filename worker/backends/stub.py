"""A backend without a model: hashes in place of layers, as protocol.md's stub chapter fixes them.

It starts in a fraction of a second, needs no torch, and gives the same bytes everywhere, so that
the wire, the orchestrator and another language's worker can be tested against it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.backends import stub_choice, stub_text
from worker.backends.base import (
    Draw,
    KVCache,
    ModelFacts,
    Part,
    Placement,
    Sampled,
    Scored,
    TokenBytes,
)
from worker.backends.steps import each_alone, one_by_one
from worker.backends.stub_choice import VOCAB_SIZE
from worker.byte_planes import exact_codings
from worker.protocol.capabilities import Capability
from worker.protocol.ops import Sampling
from worker.protocol.payload import BYTES_PER_ELEMENT, Hidden
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice

NUM_LAYERS = 128
HIDDEN_DIM = 16
MAX_ROWS = 16
_ROW_BYTES = HIDDEN_DIM * BYTES_PER_ELEMENT["bfloat16"]


@dataclass(frozen=True, slots=True)
class NoCache:
    """The cache of a backend that keeps nothing."""

    length: int = 0
    size_bytes: int = 0

    def snapshot(self, floor: int) -> None:
        """Remember nothing."""

    def restore(self, snapshot: object) -> None:
        """Bring back nothing."""

    def crop(self, length: int) -> None:
        """Do nothing; nothing is held."""


@dataclass(frozen=True, slots=True)
class StubArray:
    """What flows between the stub's primitives.

    Attributes:
        data: token ids as text before the first stage's hash, hidden states after it.
        is_tokens: which of both.
    """

    data: bytes
    is_tokens: bool = False


class StubBackend:
    """`StageBackend[StubArray]` over SHA-256."""

    def __init__(self, own: StageSlice) -> None:
        self._slice = own
        self._facts = ModelFacts(
            hidden_dim=HIDDEN_DIM,
            vocab_size=VOCAB_SIZE,
            model_type="stub",
            quantization="stub",
            capabilities=(
                Capability.PING,
                Capability.TOKENIZER,
                Capability.CHAT_TEMPLATE,
                Capability.TOOLS,
                Capability.LOGPROBS,
                Capability.BIAS,
                Capability.SCORE_TOKENS,
                Capability.VOCABULARY,
                Capability.CROP,
                Capability.AS_STEPS,
                Capability.SAMPLE_STEPS,
                Capability.TOGETHER,
            ),
            max_rows=MAX_ROWS,
            codings=exact_codings(),
        )

    @property
    def facts(self) -> ModelFacts:
        """What the stage is."""
        return self._facts

    @property
    def keeps_caches(self) -> bool:
        """Return False: any position is taken."""
        return False

    def tokenize(
        self,
        prompt: str | None,
        messages: Sequence[Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return for word i of the text its code points' sum mod 1024, plus i."""
        if messages is not None:
            return stub_text.encode(stub_text.rendered(messages, tools, template_options))
        return stub_text.encode(prompt or "")

    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False) -> str:
        """Return the ids in decimal, joined by one space; none is special."""
        return stub_text.decode(tokens)

    def vocabulary(self) -> TokenBytes:
        """Return the ids in decimal, each behind a space."""
        return stub_text.token_bytes(VOCAB_SIZE)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Accept every id: the stub's tokenizer gives ids past its vocabulary."""

    def new_cache(self, batch: int) -> KVCache:
        """Return a cache that stays empty."""
        return NoCache()

    def embed(self, tokens: Sequence[int], placement: Placement) -> StubArray:
        """Take token ids in, as decimal text joined by commas."""
        return StubArray(",".join(map(str, tokens)).encode("ascii"), is_tokens=True)

    def load(self, hidden: Hidden, tokens: Sequence[int] | None) -> StubArray:
        """Take hidden states in, as they are.

        Raises:
            ProtocolError: `bad_field`: another shape than the stub's.
        """
        expected = (hidden.batch, hidden.seq_len, HIDDEN_DIM)
        if hidden.shape != expected:
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"hidden_shape is {list(hidden.shape)}, this stage takes [batch, seq_len, "
                f"hidden_dim] = {list(expected)}: pass on what the stage before replied",
            )
        return StubArray(hidden.data)

    def forward(
        self,
        inputs: StubArray,
        cache: KVCache | None,
        placement: Placement,
        *,
        every_row: bool = False,
    ) -> StubArray:
        """Hash on a first or middle stage; pass through on a last one."""
        if inputs.is_tokens:
            seed = _hash(b"pp-stub:%d|" % placement.position + inputs.data)
        elif self._slice.is_last:
            return inputs
        else:
            seed = _hash(b"pp-stub-fr:" + _le8(placement.position) + inputs.data)
        return StubArray(_stretch(seed, placement.batch * placement.seq_len * _ROW_BYTES))

    def forward_together(self, parts: Sequence[Part[StubArray]]) -> list[StubArray | Exception]:
        """Hash each row as an op with that row alone at its position would."""
        return each_alone(self._steps, parts)

    def _steps(self, part: Part[StubArray]) -> StubArray:
        inputs, data = part.inputs, part.inputs.data
        pieces = data.split(b",") if inputs.is_tokens else _rows(data)
        columns = [StubArray(piece, inputs.is_tokens) for piece in pieces]
        outputs = one_by_one(self.forward, columns, part.cache, part.placement)
        return StubArray(b"".join(output.data for output in outputs))

    def dump(self, hidden: StubArray, placement: Placement) -> Hidden:
        """Give hidden states out, as they are."""
        batch, seq_len = placement.batch, placement.seq_len
        return Hidden(hidden.data, (batch, seq_len, HIDDEN_DIM), "bfloat16", batch, seq_len)

    def sample(self, outputs: StubArray, options: Sampling, placement: Placement) -> Sampled:
        """Return a token that is a pure function of hidden states, position and options.

        With a batch, each sequence's rows are hashed on their own.
        """
        size = len(outputs.data) // placement.batch
        pieces = (outputs.data[i * size : (i + 1) * size] for i in range(placement.batch))
        return stub_choice.choose(
            [_favourite(piece, placement.position) for piece in pieces], options
        )

    def score(
        self,
        outputs: StubArray,
        tokens: Sequence[int],
        top_logprobs: int,
        placement: Placement,
    ) -> list[Scored]:
        """Score the token after each row by what that row alone at its position would choose."""
        rows = _rows(outputs.data)[: len(tokens)]
        return [
            stub_choice.score(_favourite(row, placement.position + i), token, top_logprobs)
            for i, (row, token) in enumerate(zip(rows, tokens, strict=True))
        ]

    def choose(self, draws: Sequence[Draw[StubArray]]) -> list[list[Sampled] | Exception]:
        """Sample after each of the last rows."""
        return each_alone(self._chosen, draws)

    def _chosen(self, draw: Draw[StubArray]) -> list[Sampled]:
        rows = _rows(draw.outputs.data)[-len(draw.options) :]
        return [
            self.sample(StubArray(row), options, Placement(draw.position + i, 1, 1))
            for i, (row, options) in enumerate(zip(rows, draw.options, strict=True))
        ]

    def generate(
        self, prompt: str, max_tokens: int, prefill_chunk: int, ignore_eos: bool
    ) -> list[int]:
        """Refuse.

        Raises:
            ProtocolError: always; the stub has no model.
        """
        raise ProtocolError(
            ErrorCode.BAD_FIELD, "op 'generate_full' requires a real model: start without --stub"
        )

    def warm_up(self) -> None:
        """Do nothing; there is no one-time work."""


def _rows(data: bytes) -> list[bytes]:
    return [data[i : i + _ROW_BYTES] for i in range(0, len(data), _ROW_BYTES)]


def _favourite(data: bytes, position: int) -> int:
    """Return the likeliest token after hidden states that begin at a position."""
    digest = _hash(b"pp-stub-sample:" + _le8(position) + data)
    return int.from_bytes(digest[:4], "little") % VOCAB_SIZE


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _le8(position: int) -> bytes:
    try:
        return position.to_bytes(8, "little")
    except OverflowError:
        raise ProtocolError(
            ErrorCode.BAD_POSITION, f"position {position} is past 2**64 - 1: give a smaller one"
        ) from None


def _stretch(seed: bytes, num_bytes: int) -> bytes:
    """Return the first `num_bytes` of H(seed + le8(0)) + H(seed + le8(1)) + ..."""
    blocks = range(-(-num_bytes // hashlib.sha256().digest_size))
    return b"".join(_hash(seed + _le8(i)) for i in blocks)[:num_bytes]
