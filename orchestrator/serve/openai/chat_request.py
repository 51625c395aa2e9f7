"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.serve.errors import refusal
from orchestrator.serve.limits import Limits
from orchestrator.serve.openai.asked import MAX_TOP_LOGPROBS, Asked, read_asked, read_max_tokens
from orchestrator.serve.openai.fields import Fields
from orchestrator.serve.openai.messages import read_messages
from orchestrator.serve.openai.tools import Tools, read_tools

_FORMATS = ("text", "json_object", "json_schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a chat asks for.

    Attributes:
        max_new_tokens: most tokens of an answer; None: as many as fit.
        max_tokens_field: the field that says so, as the client calls it.
        logprobs: whether the probability of each token is told.
        response_format: what the answer must be, as it came; None: any text.
        template_options: more variables for the chat template.
    """

    model: str
    asked: Asked
    messages: tuple[dict[str, Any], ...]
    max_new_tokens: int | None
    max_tokens_field: str
    logprobs: bool
    tools: Tools | None
    response_format: dict[str, Any] | None
    template_options: dict[str, Any] | None


def read_chat_request(body: Mapping[str, Any], limits: Limits) -> ChatRequest:
    """Read the body.

    Raises:
        ApiError: a field is not what it must be, not served, or unknown; it is named.
    """
    fields = Fields(body)
    fields.belongs("prompt", "/v1/completions")
    model, messages = fields.needed_text("model"), read_messages(fields)
    logprobs = fields.flag("logprobs")
    has_top = fields.has("top_logprobs")
    top_logprobs = fields.integer("top_logprobs", 0, 0, MAX_TOP_LOGPROBS)
    if has_top and not logprobs:
        raise refusal("top_logprobs", "'top_logprobs' needs 'logprobs': set that to true too")
    tools, response_format = read_tools(fields), _response_format(fields)
    if tools is not None and response_format is not None:
        raise refusal(
            "response_format",
            "'response_format' and 'tools' bind the answer in two ways: leave one away, or set "
            "'tool_choice' to 'none'",
        )
    asked = read_asked(fields, limits, top_logprobs if logprobs else None)
    if asked.ignore_eos and (response_format is not None or (tools and tools.must_call)):
        raise refusal(
            "ignore_eos", "'ignore_eos' is true, but the answer has to end where its form is whole"
        )
    max_tokens_field = _max_tokens_field(fields)
    request = ChatRequest(
        model=model,
        asked=asked,
        messages=messages,
        max_new_tokens=read_max_tokens(fields, max_tokens_field, limits, 1),
        max_tokens_field=max_tokens_field,
        logprobs=logprobs,
        tools=tools,
        response_format=response_format,
        template_options=fields.object("chat_template_kwargs"),
    )
    _take_idle(fields)
    fields.end()
    return request


def _max_tokens_field(fields: Fields) -> str:
    older, newer = fields.has("max_tokens"), fields.has("max_completion_tokens")
    if older and newer:
        raise refusal(
            "max_tokens", "'max_tokens' and 'max_completion_tokens' are the same: give one of them"
        )
    return "max_completion_tokens" if newer else "max_tokens"


def _response_format(fields: Fields) -> dict[str, Any] | None:
    value = fields.object("response_format")
    if value is None:
        return None
    own = Fields(value, "response_format")
    kind = own.word("type", _FORMATS)
    if kind == "json_schema":
        named = own.object("json_schema")
        if named is None:
            raise own.refused("json_schema", None, "an object with 'name' and 'schema'")
        schema = Fields(named, own.name("json_schema"))
        schema.text("name")
        schema.text("description")
        schema.flag("strict")
        if schema.object("schema") is None:
            raise schema.refused("schema", None, "an object, the JSON schema")
        schema.end()
    own.end()
    return None if kind == "text" else value


def _take_idle(fields: Fields) -> None:
    """Take the fields that change nothing here, where they ask for what is done anyway."""
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        fields.text(name)
    fields.object("metadata")
    fields.only("store", [False], "nothing is stored")
    fields.only("service_tier", ["auto", "default"], "all requests are served alike")
    fields.only("modalities", [["text"]], "this server has text only")
    fields.only("verbosity", ["medium"], "say in a message how long the answer shall be")
    fields.only("prompt_cache_retention", ["in_memory"], "the stages keep caches in memory only")
    fields.only("prompt_cache_options", [], "caches are kept as memory allows")
    fields.only("reasoning_effort", [], "use 'chat_template_kwargs' where the template knows one")
    fields.only("audio", [], "this server has text only")
    fields.only("prediction", [], "tokens are guessed ahead without it")
    fields.only("moderation", [], "this server does not judge texts")
    fields.only("web_search_options", [], "this server searches nothing")
