"""One request as the user made it, and the limits it is held to before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from orchestrator.grammar.grammar import Grammar
from worker.protocol.exits import ExitCode
from worker.protocol.ops import Sampling
from worker.protocol.schema import to_fields

DEFAULT_NEW_TOKENS = 256
DEFAULT_PREFILL_CHUNK = 256


class RequestRefused(Exception):
    """A request that cannot be served as it is; nothing was computed. One sentence."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What to generate, and how.

    Attributes:
        request_id: names the request and its KV caches; unique among the live requests.
        prompt: plain text; or `messages` for the chat template; or `tokens`, its ids. Messages may
            come with the tokens that they make, which saves making them again.
        tools: what the chat template tells the model of, as OpenAI's interface has them.
        template_options: more variables for the chat template.
        max_new_tokens: most tokens to generate; None is `DEFAULT_NEW_TOKENS`, or fewer where the
            context leaves fewer.
        stop: strings that end the text before them.
        ignore_eos: go on past end-of-sequence tokens.
        prefill_chunk: tokens per prefill chunk.
        presence_penalty: taken from the logit of each token that the answer has.
        frequency_penalty: taken from it for each time that the answer has it.
        logit_bias: added to the logits of tokens, by id.
        grammar: what the answer must be; None: anything.
        show_special: whether the text keeps special tokens, as tool calls may need.

    Raises:
        ValueError: fields contradict each other; one sentence.
    """

    request_id: str
    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    tokens: tuple[int, ...] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    template_options: dict[str, Any] | None = None
    max_new_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    grammar: Grammar | None = None
    show_special: bool = False

    def __post_init__(self) -> None:
        given = [one for one in (self.prompt, self.messages, self.tokens) if one is not None]
        is_chat_of_tokens = self.prompt is None and len(given) == 2
        if len(given) != 1 and not is_chat_of_tokens:
            raise ValueError("give a prompt, messages or tokens, one of the three")
        if "" in self.stop:
            raise ValueError("a stop string is empty and would end the text at once; give a text")
        for name in ("max_new_tokens", "prefill_chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value} and must be at least 1")

    @property
    def is_steered(self) -> bool:
        """Whether more than `sampling` decides which token is chosen; see `Chooser`."""
        penalties = (self.presence_penalty, self.frequency_penalty)
        return self.grammar is not None or bool(self.logit_bias) or any(penalties)

    def new_tokens(self, prompt_tokens: int, max_context: int | None) -> int:
        """Return the most tokens to generate after a prompt of `prompt_tokens` tokens.

        Raises:
            RequestRefused: the prompt is empty, or prompt and answer do not fit the context.
        """
        if prompt_tokens == 0:
            raise RequestRefused("the prompt is empty: it has no tokens; give some text")
        wanted = self.max_new_tokens or DEFAULT_NEW_TOKENS
        if max_context is None:
            return wanted
        if self.max_new_tokens is None:
            wanted = max(1, min(wanted, max_context - prompt_tokens))
        if prompt_tokens + wanted > max_context:
            raise RequestRefused(
                f"the prompt has {prompt_tokens} tokens and {wanted} new ones are asked for, but "
                f"the context holds {max_context}; shorten the prompt, ask for fewer, or raise "
                "--max-context as far as the model allows"
            )
        return wanted

    def options(self) -> dict[str, Any]:
        """Return what may be recorded: numbers and switches, no text."""
        sampling = {
            name: value for name, value in to_fields(self.sampling).items() if value is not None
        }
        return {
            **sampling,
            "max_new_tokens": self.max_new_tokens,
            "num_stops": len(self.stop),
            "ignore_eos": self.ignore_eos,
            "prefill_chunk": self.prefill_chunk,
            "chat": self.messages is not None,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "num_biased_tokens": len(self.logit_bias),
            "has_grammar": self.grammar is not None,
        }
