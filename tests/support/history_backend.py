"""A backend whose outputs are hashes of everything its cache holds, so any mix-up shows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from worker.backends.base import (
    CannotCrop,
    Draw,
    ModelFacts,
    OutOfDeviceMemory,
    Part,
    Placement,
    Sampled,
    Scored,
    TokenBytes,
)
from worker.backends.steps import each_alone, one_by_one
from worker.byte_planes import exact_codings
from worker.protocol.capabilities import Capability
from worker.protocol.ops import Sampling
from worker.protocol.payload import Hidden
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice

HIDDEN_DIM = 4
ROW_BYTES = HIDDEN_DIM * 2
VOCAB_SIZE = 100
MAX_CONTEXT = 50
# Token ids that make the first stage's forward fail.
BREAKS, EXHAUSTS = 90, 91

Rows = list[list[bytes]]


class HistoryCache:
    """The rows of each sequence so far."""

    def __init__(self, batch: int, can_crop: bool) -> None:
        self.rows: Rows = [[] for _ in range(batch)]
        self.can_crop = can_crop

    @property
    def length(self) -> int:
        """Positions held."""
        return len(self.rows[0])

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return len(self.rows) * self.length * ROW_BYTES

    def snapshot(self, floor: int) -> Rows:
        """Copy the rows."""
        return [list(rows) for rows in self.rows]

    def restore(self, snapshot: Rows) -> None:
        """Bring back the rows."""
        self.rows = snapshot

    def crop(self, length: int) -> None:
        """Forget the rows from `length` on."""
        if not self.can_crop:
            raise CannotCrop("a running state")
        self.rows = [rows[:length] for rows in self.rows]


class HistoryBackend:
    """`StageBackend[list of rows per sequence]`; masked-out rows do not count."""

    def __init__(self, own: StageSlice, *, can_crop: bool = True) -> None:
        self._slice = own
        self._can_crop = can_crop
        self.facts = ModelFacts(
            codings=exact_codings(),
            hidden_dim=HIDDEN_DIM,
            vocab_size=VOCAB_SIZE,
            max_context=MAX_CONTEXT,
            capabilities=(
                Capability.AS_STEPS,
                Capability.SAMPLE_STEPS,
                Capability.TOGETHER,
                Capability.SCORE_TOKENS,
                Capability.VOCABULARY,
                *([Capability.CROP] if can_crop else []),
            ),
            max_rows=8,
        )
        self.keeps_caches = True

    def tokenize(
        self,
        prompt: str | None,
        messages: Sequence[Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the code points, mod the vocabulary."""
        return [ord(character) % VOCAB_SIZE for character in prompt or ""]

    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False) -> str:
        """Return the ids as letters."""
        return "".join(chr(97 + token % 26) for token in tokens)

    def vocabulary(self) -> TokenBytes:
        """Return the ids as letters."""
        return TokenBytes(pieces=[bytes([97 + token % 26]) for token in range(VOCAB_SIZE)])

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Refuse ids outside the vocabulary."""
        for i, token in enumerate(tokens):
            if token >= VOCAB_SIZE:
                raise ProtocolError(
                    ErrorCode.BAD_FIELD,
                    f"token id {token} at index {i} is not below {VOCAB_SIZE}",
                )

    def new_cache(self, batch: int) -> HistoryCache:
        """Return an empty cache."""
        return HistoryCache(batch, self._can_crop)

    def embed(self, tokens: Sequence[int], placement: Placement) -> Rows:
        """Turn each id into a row."""
        rows = [token.to_bytes(ROW_BYTES, "little") for token in tokens]
        size = placement.seq_len
        return [rows[i * size : (i + 1) * size] for i in range(placement.batch)]

    def load(self, hidden: Hidden, tokens: Sequence[int] | None) -> Rows:
        """Cut the bytes into rows."""
        rows = [hidden.data[i : i + ROW_BYTES] for i in range(0, len(hidden.data), ROW_BYTES)]
        size = hidden.seq_len
        return [rows[i * size : (i + 1) * size] for i in range(hidden.batch)]

    def forward(
        self,
        inputs: Rows,
        cache: HistoryCache | None,
        placement: Placement,
        *,
        every_row: bool = False,
    ) -> Rows:
        """Hash each row with all rows before it that the mask lets through."""
        if cache is None:
            return inputs
        assert cache.length == placement.position
        first = int.from_bytes(inputs[0][0], "little")
        if self._slice.is_first and first == BREAKS:
            raise RuntimeError("size mismatch in layer 3")
        if self._slice.is_first and first == EXHAUSTS:
            raise OutOfDeviceMemory("4 GiB asked")
        held = [old + new for old, new in zip(cache.rows, inputs, strict=True)]
        total = placement.position + placement.seq_len
        mask = placement.attention_mask or b"\1" * (placement.batch * total)
        assert len(mask) == placement.batch * total
        outputs = []
        for i, rows in enumerate(held):
            kept = mask[i * total : (i + 1) * total]
            seen = hashlib.sha256(str(self._slice).encode())
            hashes = []
            for row, is_kept in zip(rows, kept, strict=True):
                if is_kept:
                    seen.update(row)
                hashes.append(seen.digest()[:ROW_BYTES])
            outputs.append(hashes[placement.position :])
        cache.rows = held
        return outputs

    def forward_together(self, parts: Sequence[Part[Rows]]) -> list[Rows | Exception]:
        """Hash the rows of each part one after the other."""
        return each_alone(self._steps, parts)

    def _steps(self, part: Part[Rows]) -> Rows:
        columns = [[[row]] for row in part.inputs[0]]
        assert part.cache is None or isinstance(part.cache, HistoryCache)
        outputs = one_by_one(self.forward, columns, part.cache, part.placement)
        return [[row for output in outputs for row in output[0]]]

    def dump(self, hidden: Rows, placement: Placement) -> Hidden:
        """Join the rows."""
        data = b"".join(row for rows in hidden for row in rows)
        shape = (placement.batch, placement.seq_len, HIDDEN_DIM)
        return Hidden(data, shape, "bfloat16", placement.batch, placement.seq_len)

    def sample(self, outputs: Rows, options: Sampling, placement: Placement) -> Sampled:
        """Return the last row's first byte as the token."""
        if options.suppress_tokens and len(set(options.suppress_tokens)) == VOCAB_SIZE:
            raise ProtocolError(ErrorCode.BAD_FIELD, "every token is suppressed")
        return Sampled(token_ids=tuple(rows[-1][0] % VOCAB_SIZE for rows in outputs))

    def score(
        self, outputs: Rows, tokens: Sequence[int], top_logprobs: int, placement: Placement
    ) -> list[Scored]:
        """Return what depends on the row, the token and the position alone, and on all of them."""
        scored = []
        for i, (row, token) in enumerate(zip(outputs[0], tokens, strict=False)):
            mark = f"|{token}@{placement.position + i}".encode()
            logprob = -float(hashlib.sha256(row + mark).digest()[0])
            top = (row[0] % VOCAB_SIZE,) if top_logprobs else None
            scored.append(
                Scored(logprob=logprob, top_tokens=top, top_logprobs=(-0.5,) if top else None)
            )
        return scored

    def choose(self, draws: Sequence[Draw[Rows]]) -> list[list[Sampled] | Exception]:
        """Choose after each of the last rows."""
        found: list[list[Sampled] | Exception] = []
        for draw in draws:
            rows = draw.outputs[0][-len(draw.options) :]
            try:
                found.append(
                    [
                        self.sample([[row]], options, Placement(draw.position + i, 1, 1))
                        for i, (row, options) in enumerate(zip(rows, draw.options, strict=True))
                    ]
                )
            except ProtocolError as error:
                found.append(error)
        return found

    def generate(
        self, prompt: str, max_tokens: int, prefill_chunk: int, ignore_eos: bool
    ) -> list[int]:
        """Return the prompt's own tokens again."""
        return self.tokenize(prompt, None)[:max_tokens]

    def warm_up(self) -> None:
        """Do nothing."""
