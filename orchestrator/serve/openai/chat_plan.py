"""A chat: from what was asked to what is done."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from orchestrator.grammar.grammar import Grammar
from orchestrator.grammar.refused import GrammarRefused
from orchestrator.grammar.response_format import grammar_of
from orchestrator.serve.errors import refusal
from orchestrator.serve.openai.abilities import check_abilities, check_chat, check_logprobs
from orchestrator.serve.openai.chat_reply import ChatReply
from orchestrator.serve.openai.chat_request import ChatRequest
from orchestrator.serve.openai.choice import Choice
from orchestrator.serve.openai.heading import Heading
from orchestrator.serve.openai.logprobs import ChatLogprobs
from orchestrator.serve.openai.plan import Plan
from orchestrator.serve.openai.prompt import Prompt
from orchestrator.serve.openai.seeds import with_seed
from orchestrator.serve.openai.token_logprob import ShownLogprobs
from orchestrator.serve.openai.tools import Tools
from orchestrator.serve.openai.usage import Usage
from orchestrator.serve.service import Service
from orchestrator.tool_calls.formats import ToolFormat, tool_format_of
from orchestrator.tool_calls.history import for_template
from orchestrator.tool_calls.reader import ToolReader


async def plan_chat(service: Service, request: ChatRequest) -> Plan:
    """Return what to do.

    Raises:
        ApiError: the stages cannot serve it, or the answer cannot be held to what is asked.
        OpRejected, StageFailure: see `Pipeline.vocabulary`.
    """
    asked, heading = request.asked, Heading.new("chatcmpl", service)
    check_chat(service.pipeline, with_tools=request.tools is not None)
    tool_format = await _tool_format(service, request.tools)
    base = replace(
        asked.request(
            heading.id,
            messages=for_template(request.messages, tool_format),
            tools=None if request.tools is None else request.tools.shown,
            template_options=request.template_options,
        ),
        grammar=await _grammar(service, request, tool_format),
        show_special=tool_format is not None and tool_format.show_special,
    )
    check_abilities(service.pipeline, base)
    vocabulary = None
    if request.logprobs:
        check_logprobs(service.pipeline, of_prompt=False)
        vocabulary = await service.pipeline.vocabulary()
    prompt = Prompt(service, base, "messages", request.max_tokens_field)
    choices = [
        Choice(
            index=number,
            request=replace(with_seed(base, number), request_id=f"{heading.id}-{number}"),
            prompt=prompt,
            max_new_tokens=request.max_new_tokens,
            logprobs=None if vocabulary is None else ShownLogprobs(vocabulary),
            reader=_reader(request.tools, tool_format),
            parallel=request.tools is None or request.tools.parallel,
        )
        for number in range(asked.n)
    ]
    reply = ChatReply(
        heading,
        asked.n,
        include_usage=asked.include_usage,
        logprobs=None if vocabulary is None else ChatLogprobs(vocabulary),
    )
    return Plan(
        choices=choices,
        reply=reply,
        usage=Usage(asked.n),
        stream=asked.stream,
        include_usage=asked.include_usage,
    )


async def _tool_format(service: Service, tools: Tools | None) -> ToolFormat | None:
    """Return how this model writes calls; None where it is not known, or there are no tools."""
    if tools is None:
        return None
    vocabulary = await service.pipeline.vocabulary()
    found = tool_format_of(vocabulary.chat_template)
    if found is None and tools.must_call:
        raise refusal(
            "tool_choice",
            "'tool_choice' asks for a call, but how this model writes calls is not known: leave "
            "it at 'auto' and read the text",
        )
    return found


def _reader(tools: Tools | None, tool_format: ToolFormat | None) -> ToolReader | None:
    return None if tools is None or tool_format is None else tool_format.reader(tools.shown)


async def _grammar(
    service: Service, request: ChatRequest, tool_format: ToolFormat | None
) -> Grammar | None:
    """Return what the answers must be; None where they are free."""
    tools, response_format = request.tools, request.response_format
    is_held = tools is not None and tools.must_call
    if response_format is None and not is_held:
        return None
    param = "tools" if is_held else "response_format"
    try:
        grammars = await service.pipeline.grammars()
        if tools is not None and tool_format is not None:
            # Compiling takes long for large schemas, and other answers wait for the event loop.
            return await asyncio.to_thread(
                tool_format.grammar, tools.shown, tools.choice, grammars, parallel=tools.parallel
            )
        return await asyncio.to_thread(grammar_of, response_format, grammars)
    except GrammarRefused as refused:
        raise refusal(param, str(refused)) from None
