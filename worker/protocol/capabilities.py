"""Optional parts of the protocol, as a worker names them in its ready line."""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """A name in `capabilities`; one that is not listed there must not be relied on."""

    PING = "ping"
    TOKENIZER = "tokenizer"
    CHAT_TEMPLATE = "chat_template"
    PADDING = "padding"
    SAMPLING = "sampling"
    LOGPROBS = "logprobs"
    CHUNKED_PREFILL = "chunked_prefill"
    CROP = "crop"
    AS_STEPS = "as_steps"
    SAMPLE_STEPS = "sample_steps"
    TOGETHER = "together"
    CHAIN = "chain"
    TOOLS = "tools"
    BIAS = "bias"
    SCORE_TOKENS = "score_tokens"
    VOCABULARY = "vocabulary"

    @property
    def meaning(self) -> str:
        """One line for the protocol document."""
        return _MEANINGS[self]


_MEANINGS = {
    Capability.PING: "`ping` is answered at once, also while loading and during a long op",
    Capability.TOKENIZER: "`tokenize` and `detokenize` work (a model folder may lack a tokenizer)",
    Capability.CHAT_TEMPLATE: "`tokenize` takes `messages`",
    Capability.PADDING: "`batch` above 1 and `attention_mask_b64` are understood",
    Capability.SAMPLING: "`forward_and_sample` applies every sampling field, not greedy alone",
    Capability.LOGPROBS: "`logprobs` and `top_logprobs` are answered",
    Capability.CHUNKED_PREFILL: "`forward_and_sample` takes `sample: false`",
    Capability.CROP: "a session can go back to any earlier position, not to 0 alone",
    Capability.AS_STEPS: "`as_steps` is understood",
    Capability.SAMPLE_STEPS: "`sample_steps` is understood",
    Capability.TOGETHER: "the op `together` is understood",
    Capability.CHAIN: "`listen`, `connect`, `give_link` and `take_link` are understood",
    Capability.TOOLS: "the chat template has a place for `tools`",
    Capability.BIAS: "`bias_tokens`, `bias` and `allowed_b64` are understood",
    Capability.SCORE_TOKENS: "`score_tokens` is understood",
    Capability.VOCABULARY: "`vocabulary` is answered",
}
