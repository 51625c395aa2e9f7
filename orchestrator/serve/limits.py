"""What a request over HTTP may cost."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
DEFAULT_BODY_BYTES = 8 * MIB
DEFAULT_CHOICES = 16
MOST_HEAD_BYTES = 32 * 1024
DEFAULT_SEND_TIMEOUT_S = 30.0
DEFAULT_RECEIVE_TIMEOUT_S = 30.0
# Who is refused is told what to ask the operator for.
BODY_FLAG = "--max-body-bytes"
CHOICES_FLAG = "--max-choices"
PROMPT_TOKENS_FLAG = "--max-prompt-tokens"
NEW_TOKENS_FLAG = "--max-new-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one request; those of all together are the desk's.

    Attributes:
        max_body_bytes: of a request's body; 413 above it.
        max_prompt_tokens: of one prompt; None: what the context holds.
        max_new_tokens: of one answer; None: what the context holds.
        max_choices: answers to one request, over all its prompts.
        receive_timeout_s: for the headers of a request, and again for its body; 408 after it.
        send_timeout_s: that a client may leave unread what was sent to it, before it is cut.
    """

    max_body_bytes: int = DEFAULT_BODY_BYTES
    max_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    max_choices: int = DEFAULT_CHOICES
    receive_timeout_s: float = DEFAULT_RECEIVE_TIMEOUT_S
    send_timeout_s: float = DEFAULT_SEND_TIMEOUT_S
