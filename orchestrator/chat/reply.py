"""One answer of a chat while it streams; it can be stopped from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.asking import AnswerOptions
from orchestrator.chat.console import Console
from orchestrator.generate import TokenOutput
from orchestrator.meter import Meter
from orchestrator.pipeline import Pipeline


class Reply:
    """The answer to a chat; `run` streams it, `stop` ends it where it is.

    Args:
        pipeline: the model.
        messages: the chat.
        options: how to generate.
        console: gets the text.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        messages: Sequence[Mapping[str, Any]],
        options: AnswerOptions,
        console: Console,
    ) -> None:
        self._pipeline = pipeline
        self._messages = messages
        self._options = options
        self._console = console
        self._pieces: list[str] = []
        self._last: TokenOutput | None = None
        self._meter = Meter()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def text(self) -> str:
        """What was shown so far."""
        return "".join(self._pieces)

    @property
    def is_whole(self) -> bool:
        """Whether it came to its own end."""
        return self._last is not None and self._last.finish is not None

    async def run(self) -> None:
        """Stream the answer up to its end or to `stop`.

        Raises:
            RequestRefused, OpRejected, StageFailure: see `Pipeline.submit`.
            OutputClosed, OutputFailed: it cannot be shown.
        """
        self._task = asyncio.create_task(self._stream())
        if self._is_stopped:
            self._task.cancel()
        try:
            await asyncio.wait({self._task})
        finally:
            self._task.cancel()
        if not self._task.cancelled():
            self._task.result()
        await self._console.end_answer()

    def stop(self) -> None:
        """End it; to be called in the event loop."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    def summary(self) -> str:
        """Return one line on what it cost."""
        num_tokens, timings = self._meter.completion_tokens, self._meter.timings()
        parts = [f"{num_tokens} token{'' if num_tokens == 1 else 's'}"]
        if timings.tokens_per_s is not None:
            parts.append(f"{timings.tokens_per_s:.1f} tokens/s")
        if timings.ttft_ms is not None:
            parts.append(f"first token after {timings.ttft_ms / 1e3:.2f} s")
        if self._last is not None:
            cached = self._last.cached_tokens
            prompt = self._last.prompt_tokens
            plural = "" if prompt == 1 else "s"
            parts.append(f"prompt {prompt} token{plural} ({cached} cached)")
        finish = None if self._last is None else self._last.finish
        if finish is None:
            parts.append("stopped")
        elif finish.reason == "length":
            parts.append("cut at the limit of tokens")
        return ", ".join(parts)

    async def _stream(self) -> None:
        tokens = self._pipeline.chat(self._messages, **self._options)
        async with contextlib.aclosing(tokens):
            async for token in tokens:
                self._meter.token()
                self._last = token
                self._pieces.append(token.text)
                await self._console.write(token.text)
