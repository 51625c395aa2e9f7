"""What the first stage is sent: a text, chat messages, or token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from orchestrator.serve.errors import ApiError, refusal
from orchestrator.serve.openai.body import parse_object
from orchestrator.spelling import closest

TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"
_FORMS = ("prompt", "messages", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One of the three is there.

    Attributes:
        field: of the body that it came in; None where the body is the text.
    """

    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    tokens: tuple[int, ...] | None = None
    field: str | None = None


def read_prompt(kind: str, body: bytes) -> Prompt:
    """Read a body of the type `text/plain` or `application/json`.

    Raises:
        ApiError: 400: it is none of the three forms; 415: another type.
    """
    if kind == TEXT:
        return Prompt(prompt=_text(body))
    if kind != JSON:
        raise wrong_type(kind, f"{TEXT}, or {JSON} with 'prompt', 'messages' or 'tokens'")
    fields = parse_object(body)
    check_names(fields, _FORMS)
    given = [name for name in _FORMS if name in fields]
    if len(given) != 1:
        raise refusal(
            None, f"the body has {' and '.join(given) or 'none'} of {', '.join(_FORMS)}: give one"
        )
    value = fields[given[0]]
    if "prompt" in fields:
        if not isinstance(value, str):
            raise refusal("prompt", f"'prompt' is {_named(value)}, it needs to be a string")
        return Prompt(prompt=value, field="prompt")
    if "tokens" in fields:
        return Prompt(tokens=token_ids(value), field="tokens")
    if not isinstance(value, list) or not value or not all(isinstance(m, dict) for m in value):
        raise refusal(
            "messages",
            f"'messages' is {_named(value)}, it needs to be an array of {{role, content}} objects",
        )
    return Prompt(messages=tuple(value), field="messages")


def check_names(fields: Mapping[str, object], names: Sequence[str]) -> None:
    """Refuse every field that is not one of `names`.

    Raises:
        ApiError: 400.
    """
    for name in fields:
        if name not in names:
            meant = closest(name, names)
            hint = f"known: {', '.join(names)}" if meant is None else f"did you mean {meant!r}?"
            raise refusal(name, f"the field {name[:80]!r} is not known here; {hint}")


def token_ids(value: object) -> tuple[int, ...]:
    """Read token ids.

    Raises:
        ApiError: 400.
    """
    if not isinstance(value, list) or not value:
        raise refusal("tokens", f"'tokens' is {_named(value)}, it needs to be an array of ids")
    for index, token in enumerate(value):
        if type(token) is not int or not 0 <= token < 2**31:
            raise refusal(
                f"tokens[{index}]", f"'tokens' has {_named(token)} at {index}, it needs ids from 0"
            )
    return tuple(value)


def wrong_type(kind: str, needed: str) -> ApiError:
    """Return the error of a body of another type."""
    return ApiError(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"the body's Content-Type is {kind[:80] or 'missing'}, this stage takes {needed}",
        param="Content-Type",
    )


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refusal(None, f"the body is no UTF-8: {error.reason} at byte {error.start}") from None


def _named(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
