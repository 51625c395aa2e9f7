"""One request as the user made it, and the limits it is held to before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
        prompt: plain text; or `messages` for the chat template.
        max_new_tokens: most tokens to generate; None is `DEFAULT_NEW_TOKENS`, or fewer where the
            context leaves fewer.
        stop: strings that end the text before them.
        ignore_eos: go on past end-of-sequence tokens.
        prefill_chunk: tokens per prefill chunk.

    Raises:
        ValueError: fields contradict each other; one sentence.
    """

    request_id: str
    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    max_new_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give a prompt or messages, one of the two")
        for name in ("max_new_tokens", "prefill_chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value} and must be at least 1")

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
        }
