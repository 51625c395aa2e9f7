"""How answers are sent: the status waits for the first token, and a failure is never an end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.types import Message

from orchestrator.failures import Crashed, OpRejected, Scene
from orchestrator.generate import Finish, TokenOutput
from orchestrator.meter import Meter
from orchestrator.pipeline import Pipeline
from orchestrator.request import GenerationRequest, RequestRefused
from orchestrator.serve.desk import Busy, Desk, Draining
from orchestrator.serve.limits import Limits
from orchestrator.serve.meters import Meters
from orchestrator.serve.openai.chat_reply import ChatReply
from orchestrator.serve.openai.choice import Choice
from orchestrator.serve.openai.event_stream import EventStream
from orchestrator.serve.openai.heading import Heading
from orchestrator.serve.openai.plan import Plan
from orchestrator.serve.openai.prompt import Prompt
from orchestrator.serve.openai.usage import Usage
from orchestrator.serve.openai.whole import whole_response
from orchestrator.serve.service import Service
from orchestrator.tool_calls.formats import tool_format_of

HTTP = cast(Request, None)
HEADING = Heading(id="id", created_s=1, model="m", fingerprint="fp")
REQUEST = GenerationRequest(request_id="r", tokens=(1, 2))
LOST = Crashed(Scene(stage=1, host="b", phase="idle"), "was killed")
Said = str | Exception | asyncio.Event


class Scripted:
    """A service whose answers follow a script: texts, failures, and events that are waited for."""

    def __init__(
        self,
        *script: Said,
        at_desk: Exception | None = None,
        limits: Limits | None = None,
        max_context: int | None = None,
    ) -> None:
        self._script = script
        self._at_desk = at_desk
        self.limits = limits or Limits()
        self.pipeline = SimpleNamespace(stages=None, facts=SimpleNamespace(max_context=max_context))
        self.places = 0
        self.asked: int | None = None
        self.begun = asyncio.Event()

    @contextlib.asynccontextmanager
    async def place(self, http: Request) -> AsyncIterator[None]:
        if self._at_desk is not None:
            raise self._at_desk
        self.places += 1
        try:
            yield
        finally:
            self.places -= 1

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        self.asked = request.max_new_tokens
        texts = [one for one in self._script if isinstance(one, str)]
        finish = Finish(reason="stop", matched_stop=None, timings=Meter().timings())
        for one in self._script:
            self.begun.set()
            if isinstance(one, Exception):
                raise one
            if isinstance(one, asyncio.Event):
                await one.wait()
                continue
            texts.pop()
            yield TokenOutput(
                token_id=0,
                text=one,
                logprob=None,
                prompt_tokens=2,
                cached_tokens=1,
                finish=None if texts else finish,
            )


def plan(
    service: Scripted, reader: Any = None, *, parallel: bool = True, wanted: int | None = 9
) -> Plan:
    prompt = Prompt(cast(Service, service), REQUEST, "prompt", "max_tokens")
    choice = Choice(
        index=0,
        request=REQUEST,
        prompt=prompt,
        max_new_tokens=wanted,
        reader=reader,
        parallel=parallel,
    )
    reply = ChatReply(HEADING, 1, include_usage=False, logprobs=None)
    return Plan(choices=[choice], reply=reply, usage=Usage(1), stream=True, include_usage=True)


def sent(service: Scripted, made: Plan, keep_alive_s: float = 15) -> list[Message]:
    """Return what is sent to a client that stays until the end."""
    return asyncio.run(_sent(service, made, keep_alive_s))


async def _sent(service: Scripted, made: Plan, keep_alive_s: float) -> list[Message]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)
        if message.get("body") == b": still working\n\n":
            for one in service._script:
                if isinstance(one, asyncio.Event):
                    one.set()

    stream = EventStream(cast(Service, service), HTTP, made, keep_alive_s)
    await stream({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    return messages


def lines(messages: Sequence[Message]) -> list[str]:
    body = b"".join(one["body"] for one in messages[1:]).decode()
    assert body.endswith("\n\n")
    return body[:-2].split("\n\n")


def deltas(messages: Sequence[Message]) -> list[Any]:
    """Return each chunk's delta, or its reason of the end, or the counts, or "[DONE]"."""
    found: list[Any] = []
    for line in lines(messages):
        text = line.removeprefix("data: ")
        if text == "[DONE]":
            found.append(text)
            continue
        chunk = json.loads(text)
        if "error" in chunk or not chunk["choices"]:
            found.append(chunk.get("error") or chunk["usage"])
        else:
            choice = chunk["choices"][0]
            found.append(choice["finish_reason"] or choice["delta"])
    return found


def test_a_stream_tells_the_role_the_text_the_reason_the_counts_and_the_end() -> None:
    service = Scripted("a", "", "b")
    assert deltas(sent(service, plan(service))) == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        "stop",
        {
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        "[DONE]",
    ]


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (RequestRefused("no"), 400, None, None),
        (OpRejected(0, "a", "tokenize", "bad_field", "no"), 400, None, None),
        (OpRejected(0, "a", "x", "context_full", "no"), 400, "context_length_exceeded", None),
        (OpRejected(0, "a", "x", "internal", "no"), 500, "stage_error", None),
        (OpRejected(0, "a", "x", "out_of_memory", "no"), 503, "out_of_memory", "5"),
        (LOST, 503, "stage_lost", "5"),
        (ConnectionError("closed"), 503, "server_shutting_down", "5"),
        (Draining(), 503, "server_shutting_down", "5"),
        (Busy(64, 7), 429, "rate_limit_exceeded", "7"),
        (ZeroDivisionError("x"), 500, "internal", None),
    ],
)
def test_what_fails_before_the_first_token_has_its_own_status(
    error: Exception, status: int, code: str | None, retry: str | None
) -> None:
    service = Scripted(error) if not isinstance(error, Busy) else Scripted(at_desk=error)
    start, body = sent(service, plan(service))
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    got = json.loads(body["body"])["error"]["code"]
    assert (start["status"], got, headers.get("retry-after")) == (status, code, retry)


@pytest.mark.parametrize(
    ("limits", "max_context", "wanted", "param", "message"),
    [
        (
            Limits(max_prompt_tokens=1),
            None,
            1,
            "prompt",
            (
                "the prompt has 2 tokens, at most 1 are taken here (--max-prompt-tokens of the "
                "server); shorten it"
            ),
        ),
        (
            Limits(),
            10,
            9,
            "max_tokens",
            (
                "'max_tokens' is 9, but the prompt has 2 tokens and the context holds 10; ask for "
                "at most 8, or shorten the prompt"
            ),
        ),
        (
            Limits(),
            2,
            None,
            "prompt",
            (
                "the prompt has 2 tokens and the context holds 2, which leaves no place; shorten "
                "the prompt"
            ),
        ),
    ],
)
def test_what_does_not_fit_is_refused_as_openai_does_and_names_what_is_too_much(
    limits: Limits, max_context: int | None, wanted: int | None, param: str, message: str
) -> None:
    service = Scripted("a", limits=limits, max_context=max_context)
    start, body = sent(service, plan(service, wanted=wanted))
    error = json.loads(body["body"])["error"]
    assert (start["status"], error["code"], error["param"], error["message"]) == (
        400,
        "context_length_exceeded",
        param,
        message,
    )


@pytest.mark.parametrize(("tokens", "status", "param"), [((), 400, "prompt"), ((1,), 200, None)])
def test_an_empty_text_is_a_prompt_where_the_tokenizer_adds_a_token(
    tokens: tuple[int, ...], status: int, param: str | None
) -> None:
    async def tokenize(*_asked: Any, **_more: Any) -> tuple[int, ...]:
        return tokens

    service = Scripted("a")
    service.pipeline.stages = SimpleNamespace(tokenize=tokenize)
    request = GenerationRequest(request_id="r", prompt="")
    prompt = Prompt(cast(Service, service), request, "prompt", "max_tokens")
    made = plan(service)
    choice = replace(made.choices[0], request=request, prompt=prompt)
    start, body, *_ = sent(service, replace(made, choices=[choice]))
    told = json.loads(body["body"])["error"]["param"] if status != 200 else None
    assert (start["status"], told) == (status, param)


def test_what_a_stage_refuses_of_the_request_is_told_without_the_stage() -> None:
    service = Scripted(OpRejected(1, "b", "forward_range", "bad_field", "the text is odd"))
    _, body = sent(service, plan(service))
    assert json.loads(body["body"])["error"]["message"] == "the text is odd"


@pytest.mark.parametrize(
    ("limits", "max_context", "asked"),
    [(Limits(), None, 256), (Limits(max_new_tokens=5), None, 5), (Limits(), 10, 8)],
)
def test_an_answer_of_no_given_length_may_be_as_long_as_fits(
    limits: Limits, max_context: int | None, asked: int
) -> None:
    service = Scripted("a", limits=limits, max_context=max_context)
    sent(service, plan(service, wanted=None))
    assert service.asked == asked


def test_what_fails_later_ends_the_stream_with_an_error_and_no_reason() -> None:
    service = Scripted("a", LOST, "b")
    messages = sent(service, plan(service))
    error = {
        "message": "stage 1 on b was killed",
        "type": "server_error",
        "param": None,
        "code": "stage_lost",
    }
    told = deltas(messages)
    assert (messages[0]["status"], messages[-1]["more_body"]) == (200, False)
    assert told == [{"role": "assistant", "content": ""}, {"content": "a"}, error]


@pytest.mark.parametrize(("failure", "told"), [(LOST, Crashed), (None, Draining)])
def test_an_answer_that_is_ended_says_why(failure: Crashed | None, told: type[Exception]) -> None:
    async def ended() -> None:
        pipeline = SimpleNamespace(
            prefill_chunk=256,
            stages=SimpleNamespace(failure=failure),
            submit=Scripted(asyncio.Event()).submit,
        )
        service = Service(
            pipeline=cast(Pipeline, pipeline),
            model_name="m",
            created_s=0,
            desk=Desk(1, 1),
            limits=Limits(),
            meters=Meters(),
        )
        answer = asyncio.ensure_future(anext(service.submit(REQUEST)))
        await asyncio.sleep(0)
        service.end()
        with pytest.raises(told):
            await answer

    asyncio.run(ended())


def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    service = Scripted(asyncio.Event(), "a")
    told = lines(sent(service, plan(service), keep_alive_s=0.01))
    assert (told[0], told[-1]) == (": still working", "data: [DONE]")


def test_a_client_that_goes_away_ends_the_work() -> None:
    service = Scripted("a", asyncio.Event(), "b")

    async def receive() -> Message:
        await service.begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    stream = EventStream(cast(Service, service), HTTP, plan(service))
    asyncio.run(stream({"type": "http"}, receive, send))  # type: ignore[arg-type]
    assert service.places == 0


HERMES = "{{ tools }}<tool_call>"
CALL = '<tool_call>{{"name": "look", "arguments": {{"at": "{0}"}}}}</tool_call>'


@pytest.mark.parametrize("parallel", [True, False])
def test_calls_are_the_same_streamed_and_whole(parallel: bool) -> None:
    found = tool_format_of(HERMES)
    assert found is not None
    text = "See:" + CALL.format("sea") + CALL.format("sky") + "more"
    script = [text[i : i + 7] for i in range(0, len(text), 7)]

    streamed: dict[int, list[Any]] = {}
    service = Scripted(*script)
    told = deltas(sent(service, plan(service, found.reader(), parallel=parallel)))
    for delta in told:
        for call in delta.get("tool_calls", ()) if isinstance(delta, dict) else ():
            one = streamed.setdefault(call["index"], ["", ""])
            one[0] += call["function"].get("name", "")
            one[1] += call["function"]["arguments"]
    service = Scripted(*script)
    made = plan(service, found.reader(), parallel=parallel)
    whole = json.loads(asyncio.run(whole_response(cast(Service, service), HTTP, made)).body)
    choice = whole["choices"][0]

    places = ["sea", "sky"] if parallel else ["sea"]
    expected = [["look", json.dumps({"at": place})] for place in places]
    calls = [one["function"] for one in choice["message"]["tool_calls"]]
    assert list(streamed.values()) == [[one["name"], one["arguments"]] for one in calls] == expected
    assert ("tool_calls" in told, choice["finish_reason"]) == (True, "tool_calls")
