"""One answer from its place at the desk to its last token."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from starlette.requests import Request

from orchestrator.generate import TokenOutput
from orchestrator.request import GenerationRequest
from orchestrator.serve.openai.delta import Counts, Delta
from orchestrator.serve.openai.echo import Echo
from orchestrator.serve.openai.prompt import Prompt
from orchestrator.serve.openai.token_logprob import ShownLogprobs
from orchestrator.serve.service import Service
from orchestrator.tool_calls.pieces import CallArguments, CallBegun, Text
from orchestrator.tool_calls.reader import ToolReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one answer shall be.

    Attributes:
        index: its number in the response.
        prompt: gives the tokens; those of `request` are not looked at.
        max_new_tokens: most tokens; None: as many as fit; 0 generates none.
        echo: repeats the prompt first.
        logprobs: holds log probabilities back as long as their text; None tells none.
        reader: finds tool calls in the text; None where there are none to be found.
        parallel: whether it may call several times.
    """

    index: int
    request: GenerationRequest
    prompt: Prompt
    max_new_tokens: int | None
    echo: Echo | None = None
    logprobs: ShownLogprobs | None = None
    reader: ToolReader | None = None
    parallel: bool = True

    async def deltas(self, service: Service, http: Request) -> AsyncGenerator[Delta, None]:
        """Yield the answer piece by piece; the last one has `finish_reason` and `counts`.

        The caller closes it, which cancels the work.

        Raises:
            ApiError: it cannot be served as it is.
            Busy, Draining: see `Service.place`.
            OpRejected, StageFailure, RequestRefused: see `Pipeline.submit`.
        """
        async with service.place(http):
            tokens = await self.prompt.tokens()
            limit = self.prompt.new_tokens(len(tokens), self.max_new_tokens)
            if self.echo is not None:
                text, logprobs = await self.echo.of(tokens)
                yield Delta(index=self.index, text=text, logprobs=logprobs)
            if limit == 0:
                counts = Counts(prompt=len(tokens), completion=0, cached=0)
                yield Delta(index=self.index, finish_reason="length", counts=counts)
                return
            # Messages stay: they tell where earlier answers are, which the stages may hold.
            request = replace(self.request, prompt=None, tokens=tokens, max_new_tokens=limit)
            spoken = _Spoken(self)
            async with contextlib.aclosing(service.submit(request)) as outputs:
                async for output in outputs:
                    delta = spoken.take(output)
                    yield delta
                    if delta.finish_reason is not None:
                        return


class _Spoken:
    """Turns the tokens of one answer into pieces of it."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._tokens = 0
        self._calls = 0

    def take(self, output: TokenOutput) -> Delta:
        """Return what comes with a token."""
        choice, finish = self._choice, output.finish
        self._tokens += 1
        logprobs = () if choice.logprobs is None else choice.logprobs.take(output)
        text, calls, is_over = self._read(output)
        reason: str | None = None if finish is None else finish.reason
        if is_over or (reason == "stop" and self._calls):
            reason = "tool_calls"
        counts = Counts(
            prompt=output.prompt_tokens, completion=self._tokens, cached=output.cached_tokens
        )
        return Delta(
            index=choice.index,
            text=text,
            calls=calls,
            logprobs=logprobs,
            finish_reason=reason,
            counts=None if reason is None else counts,
        )

    def _read(self, output: TokenOutput) -> tuple[str, tuple[CallBegun | CallArguments, ...], bool]:
        """Return text, calls, and whether a call too many has begun."""
        reader = self._choice.reader
        if reader is None:
            return output.text, (), False
        pieces = reader.push(output.text)
        if output.finish is not None:
            pieces = [*pieces, *reader.finish()]
        text, calls = "", list[CallBegun | CallArguments]()
        for piece in pieces:
            if isinstance(piece, Text):
                text += piece.text
                continue
            if isinstance(piece, CallBegun):
                if self._calls and not self._choice.parallel:
                    return text, tuple(calls), True
                self._calls += 1
            calls.append(piece)
        return text, tuple(calls), False
