"""The few primitives that every op is composed of.

`A` is what flows between primitives inside one backend: bytes in the stub, tensors in
transformers. Handlers never look into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from worker.protocol.ops import Sampling
from worker.protocol.payload import Codings, Hidden

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the ready line tells about the loaded stage; see `worker.protocol.ready.Ready`."""

    hidden_dim: int
    hidden_dtype: str = "bfloat16"
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    max_context: int | None = None
    needs_tokens: bool = False
    model_type: str | None = None
    commit: str | None = None
    quantization: str = "bfloat16"
    device: str = "cpu"
    capabilities: tuple[str, ...] = ()
    numerics: Mapping[str, str] = field(default_factory=dict)
    codings: Codings = field(default_factory=dict)  # Beside bf16; their names are on the wire.
    max_rows: int = 1
    kv_budget_bytes: int | None = None  # What all KV caches together may hold; not on the wire.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A choice for each sequence of the batch.

    Attributes:
        token_ids: one id per sequence.
        logprob: natural log of the first sequence's chosen probability, before any filter.
        top_tokens: the most likely ids of the first sequence, where asked for.
        top_logprobs: their log probabilities.
    """

    token_ids: tuple[int, ...]
    logprob: float | None = None
    top_tokens: tuple[int, ...] | None = None
    top_logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """How likely a given token was at its place.

    Attributes:
        logprob: natural log of its probability; `RULED_OUT` where the model gives it none.
        top_tokens: the most likely ids there, where asked for.
        top_logprobs: their log probabilities.
    """

    logprob: float
    top_tokens: tuple[int, ...] | None = None
    top_logprobs: tuple[float, ...] | None = None


# JSON has no minus infinity; OpenAI's interface writes this for what is unlikely beyond measure.
RULED_OUT = -9999.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """What each token id stands for.

    Attributes:
        pieces: bytes of each id of the model's vocabulary; empty where it stands for none.
        special_tokens: ids that stand for no text of their own.
        chat_template: its source, where there is one.
    """

    pieces: Sequence[bytes]
    special_tokens: tuple[int, ...] = ()
    chat_template: str | None = None


class KVCache(Protocol):
    """One request's keys, values and states on this stage; filled by `forward` alone."""

    @property
    def length(self) -> int:
        """Positions held."""

    @property
    def size_bytes(self) -> int:
        """Memory held."""

    def snapshot(self, floor: int) -> Any:
        """Remember the present state; it survives a crop to `floor` and appends after it."""

    def restore(self, snapshot: Any) -> None:
        """Bring back the state of `snapshot`."""

    def crop(self, length: int) -> None:
        """Forget the positions from `length` on, exactly.

        Raises:
            CannotCrop: this architecture's state cannot be rolled back; nothing changed.
        """


class CannotCrop(Exception):
    """The cache cannot go back to an earlier position; start the request anew."""


class OutOfDeviceMemory(Exception):
    """The device had no memory for an op; the op changed nothing."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a message's rows stand.

    Attributes:
        position: absolute index of the first column.
        batch: sequences.
        seq_len: columns.
        attention_mask: uint8 [batch, position + seq_len], 0 where padded; None: no padding.
    """

    position: int
    batch: int
    seq_len: int
    attention_mask: bytes | None = None

    def step(self, i: int) -> Placement:
        """Return where column `i` of a batch of one stands, as an op of its own."""
        end = self.position + i + 1
        mask = None if self.attention_mask is None else self.attention_mask[:end]
        return Placement(end - 1, 1, 1, mask)


@dataclass(frozen=True, slots=True)
class Part(Generic[A]):
    """One request's columns, to be worked on as ops of one column each would be.

    Attributes:
        inputs: as `embed` or `load` gave them, a batch of one.
        cache: the request's; None: it keeps none.
        placement: where the columns stand.
        choices: on a last stage, how many of the last columns a token is to be chosen after.
    """

    inputs: A
    cache: KVCache | None
    placement: Placement
    choices: int = 0


@dataclass(frozen=True, slots=True)
class Draw(Generic[A]):
    """Tokens to be chosen after successive columns of one request.

    Attributes:
        outputs: what `forward_together` gave for a part with as many choices.
        options: how to choose after each of them.
        position: absolute index of the first of these columns.
    """

    outputs: A
    options: tuple[Sampling, ...]
    position: int


class StageBackend(Protocol[A]):
    """One loaded stage. Weights and slice never change after construction."""

    @property
    def facts(self) -> ModelFacts:
        """What the stage is."""

    @property
    def keeps_caches(self) -> bool:
        """Whether positions obey the session law (the stub keeps nothing and takes any)."""

    def tokenize(
        self,
        prompt: str | None,
        messages: Sequence[dict[str, Any]] | None,
        tools: Sequence[dict[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a plain prompt or of chat messages.

        Tools and options are for the chat template.

        Raises:
            ProtocolError: no tokenizer, no chat template, an empty prompt, a refused message.
        """

    def detokenize(self, tokens: Sequence[int], *, show_special: bool = False) -> str:
        """Return the text of the ids, without special tokens unless they are asked for."""

    def vocabulary(self) -> TokenBytes:
        """Return what each token id stands for.

        Raises:
            ProtocolError: no tokenizer.
        """

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Refuse ids outside the vocabulary.

        Raises:
            ProtocolError: `bad_field`, naming the index, the id and the limit.
        """

    def new_cache(self, batch: int) -> KVCache:
        """Return an empty cache."""

    def embed(self, tokens: Sequence[int], placement: Placement) -> A:
        """Take token ids in; row-major [batch, seq_len]."""

    def load(self, hidden: Hidden, tokens: Sequence[int] | None) -> A:
        """Take hidden states in from the wire."""

    def forward(
        self, inputs: A, cache: KVCache | None, placement: Placement, *, every_row: bool = False
    ) -> A:
        """Run this stage's layers; a failure leaves the cache as it was.

        On a last stage the result is ready for `sample`, with `every_row` for `score` too, and
        the head is not run sooner than by these. A stage that holds the whole model runs its
        layers on the output of `embed`, and passes the output of `load` through, because its
        layers have run on that already.

        Raises:
            OutOfDeviceMemory: the cache is as before.
        """

    def forward_together(self, parts: Sequence[Part[A]]) -> list[A | Exception]:
        """Run the columns of each part as `forward` would run them one after the other.

        Bit for bit what `placement.seq_len` calls with `placement.step(i)` give and leave in the
        cache, whatever else is run beside them; no two parts share a cache. On a last stage the
        result is ready for `choose`, where the part has choices. An exception stands in the place
        of the outputs of a part that fails, and its cache is as before.
        """

    def dump(self, hidden: A, placement: Placement) -> Hidden:
        """Give hidden states out to the wire."""

    def sample(self, outputs: A, options: Sampling, placement: Placement) -> Sampled:
        """Choose a token after the last row; the draw is a pure function of (seed, position)."""

    def score(
        self, outputs: A, tokens: Sequence[int], top_logprobs: int, placement: Placement
    ) -> list[Scored]:
        """Tell how likely each of the tokens was that stand after the first rows, one for each.

        The distribution is the model's own, before any option of sampling.
        """

    def choose(self, draws: Sequence[Draw[A]]) -> list[list[Sampled] | Exception]:
        """Choose as `sample` would after each column, alone; an exception tells why none could."""

    def generate(
        self, prompt: str, max_tokens: int, prefill_chunk: int, ignore_eos: bool
    ) -> list[int]:
        """Generate greedily with the whole model.

        Raises:
            ProtocolError: this backend has no whole model.
        """

    def warm_up(self) -> None:
        """Run one forward, so that no request pays for one-time work."""
