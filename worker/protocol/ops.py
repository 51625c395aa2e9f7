"""Every op: one frozen dataclass per request, one per reply; the wire is defined here alone.

A new op is one request class, one reply class (or a known one) and its place in `OPS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from worker.protocol.encodings import Encoding
from worker.protocol.schema import (
    BASE64,
    FLAG,
    FRACTION,
    INTEGER,
    LINK_TOKEN,
    NON_NEGATIVE,
    NON_NEGATIVE_NUMBER,
    NONEMPTY_TOKENS,
    NUMBER,
    NUMBERS,
    OBJECT,
    OBJECTS,
    PORT,
    POSITIVE,
    POSITIVE_NUMBER,
    REQUEST_ID,
    SHAPE,
    TEXT,
    TEXTS,
    TICKET,
    TOKENS,
    VARIABLES,
    one_of,
    rule,
)
from worker.protocol.stage import Role

RequestId = int | str | None
ANY_ROLE = frozenset(Role)
_AS_STEPS = (
    "work on each position as an op of its own would: bit for bit what seq_len ops of one position "
    "give, and faster; needs the capability `as_steps`"
)
_ENCODING = one_of(*map(str, Encoding))
_STEPS_ALONE = "'as_steps' works on one sequence without a mask: leave 'batch' and the mask away"
_STEPS_TOGETHER = "'sample_steps' chooses a token after each step: give 'as_steps' with it"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a worker answers; the codec puts `request_id` before its fields."""


R = TypeVar("R", bound=Reply, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Request(Generic[R]):
    """What a worker is asked. `op`, `roles` and `reply` are fixed by the class."""

    op: ClassVar[str]
    roles: ClassVar[frozenset[Role]]
    reply: ClassVar[type[Reply]]

    request_id: RequestId = rule(
        REQUEST_ID, "names the request and its KV cache; every reply repeats it", None
    )


@dataclass(frozen=True, kw_only=True)
class TokensReply(Reply):
    """Token ids of a text."""

    tokens: tuple[int, ...] = rule(TOKENS, "token ids")


@dataclass(frozen=True, kw_only=True)
class HiddenReply(Reply):
    """Hidden states after the stage's last layer, row-major, little-endian."""

    seq_len: int = rule(POSITIVE, "rows per sequence")
    hidden_shape: tuple[int, ...] | None = rule(
        SHAPE, "full shape, where it is not [1, seq_len, hidden_dim]", None
    )
    hidden_dtype: str = rule(
        one_of("bfloat16", "float32"), "element type, where it is not bfloat16", "bfloat16"
    )
    hidden_encoding: str = rule(
        _ENCODING, "how the bytes stand for the elements, where asked for", Encoding.BF16.value
    )
    hidden_b64: bytes = rule(BASE64, "base64 of the bytes; always the last field of its object")


@dataclass(frozen=True, kw_only=True)
class SampledReply(Reply):
    """The sampled token, or no token for a chunk that asked for none."""

    token_id: int | None = rule(NON_NEGATIVE, "the token chosen; absent with `sample: false`", None)
    token_ids: tuple[int, ...] | None = rule(
        TOKENS, "with a batch of several sequences: one token per sequence", None
    )
    logprob: float | None = rule(
        NUMBER,
        "natural log of the chosen token's probability before any sampling filter; of a batch, "
        "as `top_tokens`, for its first sequence",
        None,
    )
    top_tokens: tuple[int, ...] | None = rule(TOKENS, "ids of the most likely tokens", None)
    top_logprobs: tuple[float, ...] | None = rule(NUMBERS, "their log probabilities", None)
    scores: tuple[dict[str, Any], ...] | None = rule(
        OBJECTS,
        "with `score_tokens`: for each of them `{logprob, top_tokens, top_logprobs}`, the last two "
        "where `top_logprobs` was asked for",
        None,
    )
    steps: tuple[dict[str, Any], ...] | None = rule(
        OBJECTS,
        "with `sample_steps`: for each position an object of the fields above, as an op of its own "
        "would have replied; the fields above are then absent",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class TogetherReply(Reply):
    """The replies to requests that were sent together, in their order."""

    replies: tuple[dict[str, Any], ...] = rule(
        OBJECTS,
        "for each request its reply without `hidden_b64`, or `{error, code}`, as if it had been "
        "sent alone",
    )
    hidden_b64: bytes | None = rule(
        BASE64,
        "the `hidden_b64` of each reply that has one, in order, joined by `.`; always the last "
        "field",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class TextReply(Reply):
    """Text of token ids."""

    text: str = rule(TEXT, "the text")


@dataclass(frozen=True, kw_only=True)
class GeneratedReply(Reply):
    """Tokens of a whole-model generation."""

    tokens: tuple[int, ...] = rule(TOKENS, "the new token ids, without the prompt's")


@dataclass(frozen=True, kw_only=True)
class ReleasedReply(Reply):
    """Whether there was a KV cache to free."""

    released: bool = rule(FLAG, "true when a KV cache was freed")


@dataclass(frozen=True, kw_only=True)
class PongReply(Reply):
    """The worker's reader thread is alive."""

    pong: bool = rule(FLAG, "always true")
    busy: bool = rule(FLAG, "whether the worker is loading or has an op to work on", False)


@dataclass(frozen=True, kw_only=True)
class ShutdownReply(Reply):
    """The worker ends after this line."""

    shutting_down: bool = rule(FLAG, "always true")


@dataclass(frozen=True, kw_only=True)
class Tokenize(Request[TokensReply]):
    """Turn text into token ids: a plain prompt, or messages through the chat template."""

    op: ClassVar[str] = "tokenize"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.FIRST})
    reply: ClassVar[type[Reply]] = TokensReply

    prompt: str | None = rule(TEXT, "plain text, tokenized as the model's tokenizer does", None)
    messages: tuple[dict[str, Any], ...] | None = rule(
        OBJECTS,
        "chat messages `{role, content}` for the chat template, in place of `prompt`",
        None,
    )
    tools: tuple[dict[str, Any], ...] | None = rule(
        OBJECTS,
        "tools that the chat template tells the model of; needs the capability `tools`",
        None,
    )
    template_options: dict[str, Any] | None = rule(
        OBJECT, "more variables for the chat template, as `enable_thinking`", None
    )

    def complaint(self) -> str | None:
        """Tell what is wrong with the fields together."""
        if self.prompt is not None and self.messages is not None:
            return "give 'prompt' or 'messages', not both"
        if self.prompt is None and self.messages is None:
            return "'prompt' must be a string"
        if self.messages is None and (self.tools, self.template_options) != (None, None):
            return "'tools' and 'template_options' are for the chat template: send 'messages'"
        return None


@dataclass(frozen=True, kw_only=True)
class _Padded:
    """Left padding of a batch."""

    batch: int = rule(POSITIVE, "sequences in the batch; tokens and masks are row-major", 1)
    attention_mask_b64: bytes | None = rule(
        BASE64,
        "base64 of uint8 [batch, seq_len] for this message's tokens, 0 where padded on the left; "
        "the worker keeps the masks of a request and appends ones where none is given",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class _HiddenOutput:
    """Hidden states for the stage after."""

    reply_encoding: str = rule(
        _ENCODING,
        "how the reply shall encode its hidden states; one of `encodings` in the ready line",
        Encoding.BF16.value,
    )
    give_link: int | None = rule(
        TICKET,
        "hand the hidden states to the next stage over the link, under this number; the reply's "
        "`hidden_b64` is empty; of several in `together`, this stands beside `requests`",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class EmbedAndForward(_HiddenOutput, _Padded, Request[HiddenReply]):
    """Run token ids through the embeddings and the first stage's layers."""

    op: ClassVar[str] = "embed_and_forward"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.FIRST})
    reply: ClassVar[type[Reply]] = HiddenReply

    tokens: tuple[int, ...] = rule(NONEMPTY_TOKENS, "token ids [batch, seq_len], flattened")
    position: int = rule(NON_NEGATIVE, "absolute index of the first token", 0)
    as_steps: bool = rule(FLAG, _AS_STEPS, False)

    def complaint(self) -> str | None:
        """Tell what is wrong with the fields together."""
        if self.as_steps and (self.batch > 1 or self.attention_mask_b64 is not None):
            return _STEPS_ALONE
        if len(self.tokens) % self.batch:
            return f"{len(self.tokens)} 'tokens' do not fill a batch of {self.batch} sequences"
        return None


@dataclass(frozen=True, kw_only=True)
class DecodeStep(_HiddenOutput, Request[HiddenReply]):
    """Run one new token through the first stage."""

    op: ClassVar[str] = "decode_step"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.FIRST})
    reply: ClassVar[type[Reply]] = HiddenReply

    token_id: int = rule(NON_NEGATIVE, "the token id")
    position: int = rule(NON_NEGATIVE, "its absolute index")


@dataclass(frozen=True, kw_only=True)
class _HiddenInput(_Padded):
    """Hidden states from the stage before."""

    position: int = rule(NON_NEGATIVE, "absolute index of the first row")
    seq_len: int = rule(POSITIVE, "rows per sequence")
    hidden_shape: tuple[int, ...] | None = rule(
        SHAPE, "as in the reply it comes from; absent means [batch, seq_len, hidden_dim]", None
    )
    hidden_dtype: str = rule(
        one_of("bfloat16", "float32"), "as in the reply it comes from", "bfloat16"
    )
    hidden_encoding: str = rule(_ENCODING, "as in the reply it comes from", Encoding.BF16.value)
    take_link: int | None = rule(
        TICKET,
        "wait for the hidden states that the stage before hands on under this number; "
        "`hidden_b64` is empty; of several in `together`, this stands beside `requests`",
        None,
    )
    tokens: tuple[int, ...] | None = rule(
        TOKENS, "the token ids of the rows, for models whose ready line has `needs_tokens`", None
    )
    as_steps: bool = rule(FLAG, _AS_STEPS, False)

    def complaint(self) -> str | None:
        """Tell what is wrong with the fields together."""
        if self.as_steps and (self.batch > 1 or self.attention_mask_b64 is not None):
            return _STEPS_ALONE
        rows = self.batch * self.seq_len
        if self.tokens is not None and len(self.tokens) != rows:
            return f"'tokens' has {len(self.tokens)} ids, batch*seq_len needs {rows}"
        return None


@dataclass(frozen=True, kw_only=True)
class ForwardRange(_HiddenOutput, _HiddenInput, Request[HiddenReply]):
    """Run hidden states through a middle stage's layers."""

    op: ClassVar[str] = "forward_range"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.MIDDLE})
    reply: ClassVar[type[Reply]] = HiddenReply

    hidden_b64: bytes = rule(BASE64, "base64 of the hidden states; always the last field")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the last stage chooses a token. The defaults are greedy decoding."""

    temperature: float = rule(NON_NEGATIVE_NUMBER, "0 is greedy", 0.0)
    top_k: int = rule(NON_NEGATIVE, "keep the k most likely tokens; 0 keeps all", 0)
    top_p: float = rule(FRACTION, "keep the smallest set with this probability mass", 1.0)
    min_p: float = rule(FRACTION, "drop tokens below this fraction of the most likely one", 0.0)
    repetition_penalty: float = rule(
        POSITIVE_NUMBER, "divide (or multiply, below 0) the logits of `penalty_tokens`", 1.0
    )
    penalty_tokens: tuple[int, ...] | None = rule(
        TOKENS, "the distinct token ids of prompt and answer so far", None
    )
    seed: int = rule(INTEGER, "the draw is a pure function of (seed, position)", 0)
    logprobs: bool = rule(FLAG, "reply the chosen token's log probability", False)
    top_logprobs: int = rule(NON_NEGATIVE, "reply this many most likely tokens", 0)
    suppress_tokens: tuple[int, ...] | None = rule(
        TOKENS, "token ids that must not be chosen", None
    )
    bias_tokens: tuple[int, ...] | None = rule(
        TOKENS, "distinct token ids whose logits are changed; needs the capability `bias`", None
    )
    bias: tuple[float, ...] | None = rule(
        NUMBERS, "what is added to the logit of each of `bias_tokens`", None
    )
    allowed_b64: bytes | None = rule(
        BASE64,
        "base64 of a bitmap of the tokens that may be chosen: token t is bit t % 8, counted from "
        "the lowest, of byte t // 8; needs the capability `bias`",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class ForwardAndSample(Sampling, _HiddenInput, Request[SampledReply]):
    """Run hidden states through the last stage's layers and the head, and choose a token.

    On a worker that holds the whole model the layers have already run in `embed_and_forward`;
    only the final norm, the head and the choice remain.
    """

    op: ClassVar[str] = "forward_and_sample"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.LAST})
    reply: ClassVar[type[Reply]] = SampledReply

    sample: bool = rule(FLAG, "false for a prefill chunk that needs no token", True)
    sample_steps: bool = rule(
        FLAG,
        "with `as_steps`: choose a token after each position, to verify tokens that were guessed; "
        "needs the capability `sample_steps`",
        False,
    )
    score_tokens: tuple[int, ...] | None = rule(
        TOKENS,
        "the token that stands after each row, of which the last rows may have none: reply how "
        "likely each was; needs the capability `score_tokens`",
        None,
    )
    hidden_b64: bytes = rule(BASE64, "base64 of the hidden states; always the last field")

    def complaint(self) -> str | None:
        """Tell what is wrong with the fields together."""
        shared = super().complaint() or self._own_complaint()
        if shared is None and self.sample_steps and not self.as_steps:
            return _STEPS_TOGETHER
        if shared is not None or self.repetition_penalty == 1:
            return shared
        if self.sample_steps and self.tokens is None:
            return (
                "'repetition_penalty' with 'sample_steps' needs 'tokens', the ids of the rows: "
                "each one counts for the positions after it"
            )
        if self.penalty_tokens is None:
            return (
                f"'repetition_penalty' {self.repetition_penalty} needs 'penalty_tokens': send the "
                "distinct token ids of prompt and answer so far"
            )
        if self.batch > 1:
            return (
                f"'repetition_penalty' needs a batch of 1 sequence, this one has {self.batch}: "
                "send its sequences as requests of their own"
            )
        return None

    def _own_complaint(self) -> str | None:
        biased, biases = len(self.bias_tokens or ()), len(self.bias or ())
        if biased != biases:
            return f"'bias_tokens' has {biased} ids and 'bias' {biases} numbers: give one for each"
        if len(self.score_tokens or ()) > self.seq_len:
            return (
                f"'score_tokens' has {len(self.score_tokens or ())} ids for {self.seq_len} rows: "
                "give at most one for each"
            )
        if self.score_tokens and (self.batch > 1 or self.as_steps):
            return "'score_tokens' works on one sequence: leave 'batch' and 'as_steps' away"
        return None


@dataclass(frozen=True, kw_only=True)
class Detokenize(Request[TextReply]):
    """Turn token ids into text; special tokens are left out, unless they are asked for."""

    op: ClassVar[str] = "detokenize"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.LAST})
    reply: ClassVar[type[Reply]] = TextReply

    tokens: tuple[int, ...] = rule(TOKENS, "token ids")
    show_special: bool = rule(
        FLAG, "keep the text of special tokens too; needs the capability `vocabulary`", False
    )


@dataclass(frozen=True, kw_only=True)
class GenerateFull(Request[GeneratedReply]):
    """Generate greedily on one worker that holds the whole model, for reference."""

    op: ClassVar[str] = "generate_full"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.WHOLE})
    reply: ClassVar[type[Reply]] = GeneratedReply

    prompt: str = rule(TEXT, "plain text")
    max_tokens: int = rule(POSITIVE, "the most tokens to generate")
    prefill_chunk: int = rule(POSITIVE, "tokens per prefill chunk", 256)
    ignore_eos: bool = rule(FLAG, "go on past end-of-sequence tokens", False)


@dataclass(frozen=True, kw_only=True)
class Together(Request[TogetherReply]):
    """Work on several requests at once; each gets bit for bit what it would get alone.

    The requests are those of one role that run layers, each of another `request_id`; decode steps
    and `as_steps` share one pass over the weights, as far as the worker's kernels allow it without
    changing a bit. One that fails changes nothing for the others.
    """

    op: ClassVar[str] = "together"
    roles: ClassVar[frozenset[Role]] = ANY_ROLE
    reply: ClassVar[type[Reply]] = TogetherReply

    requests: tuple[dict[str, Any], ...] = rule(
        OBJECTS, "requests with `op` and `request_id`, without `hidden_b64`"
    )
    give_link: int | None = rule(
        TICKET,
        "hand the hidden states of all to the next stage over the link, under this number; those "
        "of a request that failed are empty there, those in the reply all are",
        None,
    )
    take_link: int | None = rule(
        TICKET,
        "wait for the hidden states of all that the stage before hands on under this number; "
        "`hidden_b64` is absent",
        None,
    )
    hidden_b64: bytes | None = rule(
        BASE64,
        "the `hidden_b64` of each request whose op has one, in order, joined by `.`; always the "
        "last field",
        None,
    )


@dataclass(frozen=True, kw_only=True)
class VocabularyReply(Reply):
    """Every token's bytes."""

    token_lengths: tuple[int, ...] = rule(TOKENS, "bytes of each token id, in order")
    special_tokens: tuple[int, ...] = rule(TOKENS, "ids that stand for no text", ())
    chat_template: str | None = rule(TEXT, "the chat template, where there is one", None)
    tokens_b64: bytes = rule(
        BASE64, "base64 of the bytes of all tokens, joined; always the last field"
    )


@dataclass(frozen=True, kw_only=True)
class Vocabulary(Request[VocabularyReply]):
    """Tell the bytes that each token id stands for, so that others can constrain the choice."""

    op: ClassVar[str] = "vocabulary"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.FIRST})
    reply: ClassVar[type[Reply]] = VocabularyReply


@dataclass(frozen=True, kw_only=True)
class Release(Request[ReleasedReply]):
    """Free the KV cache of `request_id`."""

    op: ClassVar[str] = "release"
    roles: ClassVar[frozenset[Role]] = ANY_ROLE
    reply: ClassVar[type[Reply]] = ReleasedReply


@dataclass(frozen=True, kw_only=True)
class Ping(Request[PongReply]):
    """Ask whether the worker is there; answered at once, even during a long op."""

    op: ClassVar[str] = "ping"
    roles: ClassVar[frozenset[Role]] = ANY_ROLE
    reply: ClassVar[type[Reply]] = PongReply


@dataclass(frozen=True, kw_only=True)
class Shutdown(Request[ShutdownReply]):
    """End the worker after the ops before it have been answered."""

    op: ClassVar[str] = "shutdown"
    roles: ClassVar[frozenset[Role]] = ANY_ROLE
    reply: ClassVar[type[Reply]] = ShutdownReply


@dataclass(frozen=True, kw_only=True)
class EnvironmentReply(Reply):
    """The variables are set; none of them is repeated."""

    variables: int = rule(NON_NEGATIVE, "how many were set")


@dataclass(frozen=True, kw_only=True)
class Environment(Request[EnvironmentReply]):
    """Set environment variables that must stand on no command line, as a token.

    Taken once, as the first line after `starting`, by a worker started with
    `--await-environment`; nothing that reads them has been imported then.
    """

    op: ClassVar[str] = "environment"
    roles: ClassVar[frozenset[Role]] = ANY_ROLE
    reply: ClassVar[type[Reply]] = EnvironmentReply

    variables: dict[str, str] = rule(
        VARIABLES, "value by name; in no event, error text or log", secret=True
    )


@dataclass(frozen=True, kw_only=True)
class ListeningReply(Reply):
    """Where the stage before can connect to, within 30 seconds."""

    port: int = rule(POSITIVE, "TCP port")
    cert_sha256: str = rule(TEXT, "SHA-256 of the certificate (DER) that it shows, hexadecimal")
    addresses: tuple[str, ...] = rule(TEXTS, "addresses of this host, loopback ones last")


@dataclass(frozen=True, kw_only=True)
class Listen(Request[ListeningReply]):
    """Open a port for the stage before, for one connection with TLS.

    It takes the place of the link from the stage before, if there is one.
    """

    op: ClassVar[str] = "listen"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.MIDDLE, Role.LAST})
    reply: ClassVar[type[Reply]] = ListeningReply

    address: str = rule(TEXT, "address to listen on; empty is every address of the host", "")
    token: str = rule(LINK_TOKEN, "what the stage before sends first", secret=True)


@dataclass(frozen=True, kw_only=True)
class ConnectedReply(Reply):
    """The next stage has taken the link."""

    host: str = rule(TEXT, "the address that answered")


@dataclass(frozen=True, kw_only=True)
class Connect(Request[ConnectedReply]):
    """Make the link to the next stage, which listens.

    It takes the place of the link there is, if any.
    """

    op: ClassVar[str] = "connect"
    roles: ClassVar[frozenset[Role]] = frozenset({Role.FIRST, Role.MIDDLE})
    reply: ClassVar[type[Reply]] = ConnectedReply

    hosts: tuple[str, ...] = rule(TEXTS, "names or addresses, tried in this order")
    port: int = rule(PORT, "as in the reply of `listen`")
    cert_sha256: str = rule(TEXT, "as in the reply of `listen`; no other certificate is accepted")
    token: str = rule(LINK_TOKEN, "as in `listen`", secret=True)


OPS: dict[str, type[Request[Any]]] = {
    request.op: request
    for request in (
        Tokenize,
        EmbedAndForward,
        DecodeStep,
        ForwardRange,
        ForwardAndSample,
        Detokenize,
        GenerateFull,
        Together,
        Vocabulary,
        Release,
        Ping,
        Shutdown,
        Environment,
        Listen,
        Connect,
    )
}
