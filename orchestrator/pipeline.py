"""One model over several hosts, ready to answer: the Python API."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from orchestrator.asking import AnswerOptions, Prompt, request_of
from orchestrator.bundle.records import Recorder, RecoveryRecord
from orchestrator.completion import Completion
from orchestrator.failures import StageFailure
from orchestrator.generate import TokenOutput, generate
from orchestrator.keywords import check
from orchestrator.pipeline_facts import PipelineFacts
from orchestrator.prefixes import Prefixes
from orchestrator.request import DEFAULT_PREFILL_CHUNK, GenerationRequest, RequestRefused
from orchestrator.speculation.speculator import Speculator
from orchestrator.stages import Stages
from worker.protocol.capabilities import Capability

if TYPE_CHECKING:
    from orchestrator.grammar.grammars import Grammars
    from orchestrator.open_options import OpenOptions
    from orchestrator.scoring import TokenScore
    from orchestrator.stage import StageStatus
    from orchestrator.vocabulary import Vocabulary

_Asked = Annotated[
    str | Sequence[Any], "a text, a sequence of token ids, or the messages of a chat in a list"
]


class Pipeline:
    """Answers requests, as many at once as are made; use `async with Pipeline.open(…)`.

    Args:
        stages: the started stages; whoever started them ends them.
        recorder: takes the record of each request.
        speculator: guesses tokens ahead.
        prefixes: what is kept of earlier requests; whoever made it ends it. None keeps nothing.
        prefill_chunk: tokens of a prompt per step, as the stages were started for.

    Attributes:
        stages: the stages themselves.
        prefixes: what is kept of earlier requests.
        prefill_chunk: tokens of a prompt per step, for requests that `submit` gets.
    """

    def __init__(
        self,
        stages: Stages,
        recorder: Recorder,
        speculator: Speculator | None = None,
        *,
        prefixes: Prefixes | None = None,
        prefill_chunk: int = DEFAULT_PREFILL_CHUNK,
    ) -> None:
        self.stages = stages
        self.prefixes = prefixes
        self.prefill_chunk = prefill_chunk
        self._recorder = recorder
        self._speculator = speculator
        self._numbers = itertools.count(1)
        self._vocabulary: Vocabulary | None = None
        self._grammars: Grammars | None = None
        self._asking = asyncio.Lock()

    @staticmethod
    @contextlib.asynccontextmanager
    async def open(
        model_id: str | os.PathLike[str] | None = None,
        *,
        hosts: str | os.PathLike[str] | Sequence[str] | None = None,
        local: int | None = None,
        record: Callable[[Recorder], Recorder] = lambda recorder: recorder,
        on_status: Callable[[StageStatus], None] = lambda status: None,
        on_notice: Callable[[str], None] = lambda text: None,
        **options: Unpack[OpenOptions],
    ) -> AsyncIterator[Pipeline]:
        """Plan, start one worker for each stage, and end them all with the block.

        Nothing is printed, and no signal handler is set: a task that is cancelled ends its block
        as any other. The hosts are asked what they can hold where that matters, as in `run`.

        Args:
            model_id: a folder with SafeTensors, or a hub id.
            hosts: the path of a hosts file, or its lines.
            local: stages on this machine; 1 where no hosts are given.
            record: given what writes the bundle, returns what takes the facts in its place.
            on_status: told of each stage's phases while it starts, from the event loop.
            on_notice: takes one sentence for each lost stage, each that is back, and whatever else
                a user should hear.
            **options: see `OpenOptions`.

        Raises:
            TypeError, ValueError: an option that there is not, a value that cannot be, or two that
                contradict each other.
            HostsError, SlurmError, NotForwarded: the hosts cannot be used; nothing was started.
            PlanError: layers and hosts do not fit together; `DoesNotFit` where memory or disk is
                what lacks.
            StageFailure: a host cannot be asked, or a stage cannot be started.
            PipelineMismatch, DraftRefused: the stages do not make one model, or the draft model
                cannot guess for it.
        """
        # Imported here, for it starts with this class.
        from orchestrator.open_options import read_options
        from orchestrator.opening import opened_by_options

        places = {"model_id": model_id, "hosts": hosts, "local": local}
        told = {"record": record, "on_status": on_status, "on_notice": on_notice}
        settled = read_options({**places, **told, **options})
        async with opened_by_options(
            settled, sys.argv, record=record, on_status=on_status, on_notice=on_notice
        ) as pipeline:
            yield pipeline

    @property
    def facts(self) -> PipelineFacts:
        """What the stages together are: layers, context, end-of-text tokens, capabilities."""
        return self.stages.facts

    @property
    def hosts(self) -> tuple[str, ...]:
        """The label of each stage's host, as it is now."""
        return self.stages.hosts

    @property
    def failure(self) -> StageFailure | None:
        """The first failure of any stage that ended the pipeline for good; None while it lives."""
        return self.stages.failure

    @property
    def recoveries(self) -> Sequence[RecoveryRecord]:
        """Every attempt to bring a lost stage back, in the order of their ends."""
        return self.stages.recoveries

    def generate(
        self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]
    ) -> AsyncGenerator[TokenOutput, None]:
        """Yield what follows a plain text, token by token.

        Args:
            prompt: the text, or the ids of its tokens.
            **options: see `AnswerOptions`.

        Raises:
            TypeError, ValueError: an option that there is not, or a value that cannot be; at once.
            RequestRefused, OpRejected, StageFailure: see `submit`.
        """
        check("prompt", prompt, Prompt)
        chunk = self.prefill_chunk
        if isinstance(prompt, str):
            request = request_of(self._name(), options, prompt=prompt, prefill_chunk=chunk)
        else:
            request = request_of(self._name(), options, tokens=prompt, prefill_chunk=chunk)
        return self.submit(request)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        **options: Unpack[AnswerOptions],
    ) -> AsyncGenerator[TokenOutput, None]:
        """Yield the answer to a chat, through the model's chat template.

        Args:
            messages: `{"role": "system" | "user" | "assistant", "content": …}`, oldest first.
            tools: what the template tells the model of, as OpenAI's interface has them.
            template_options: more variables for the template, as `enable_thinking`.
            **options: see `AnswerOptions`.

        Raises:
            TypeError, ValueError: see `generate`.
            RequestRefused: there is no chat template, for example; see `submit`.
            OpRejected, StageFailure: see `submit`.
        """
        if not self.has_chat_template:
            raise RequestRefused("the model has no chat template; use generate with a plain text")
        request = request_of(
            self._name(),
            options,
            messages=messages,
            tools=tools,
            template_options=template_options,
            prefill_chunk=self.prefill_chunk,
        )
        return self.submit(request)

    async def complete(
        self,
        asked: str | Sequence[int] | Sequence[Mapping[str, Any]],
        **options: Unpack[AnswerOptions],
    ) -> Completion:
        """Return a whole answer.

        Args:
            asked: a plain text, the ids of its tokens, or the messages of a chat.
            **options: see `AnswerOptions`.

        Raises:
            TypeError, ValueError: see `generate`.
            RequestRefused, OpRejected, StageFailure: see `submit`.
        """
        check("asked", asked, _Asked)
        given: Any = asked
        is_chat = not isinstance(asked, str) and bool(asked) and isinstance(asked[0], Mapping)
        answer = self.chat(given, **options) if is_chat else self.generate(given, **options)
        async with contextlib.aclosing(answer) as tokens:
            return Completion.of([token async for token in tokens])

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[TokenOutput, None]:
        """Yield the answer to a request token by token.

        Closing the generator, or cancelling the task that runs it, cancels the request within one
        step. Whoever may leave it early closes it (`contextlib.aclosing`); a `break` alone leaves
        that to the event loop, some time later.

        Args:
            request: what to generate; its `request_id` is unique among the live requests.

        Raises:
            TypeError: it is no request.
            RequestRefused: it cannot be served as it is; nothing was computed.
            OpRejected: a stage refused it and serves on.
            StageFailure: a stage was lost and could not be brought back.
            ConnectionError: the pipeline was closed.
        """
        check("request", request, GenerationRequest)
        tokens = generate(self.stages, request, self._recorder, self._speculator, self.prefixes)
        async with contextlib.aclosing(tokens):
            async for token in tokens:
                yield token

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return Capability.CHAT_TEMPLATE in self.facts.capabilities

    async def vocabulary(self) -> Vocabulary:
        """Return what the token ids stand for; asked of the stages once.

        Raises:
            OpRejected: the stage that tokenizes cannot tell.
            StageFailure, ConnectionError: see `submit`.
        """
        async with self._asking:
            if self._vocabulary is None:
                self._vocabulary = await self.stages.vocabulary()
        return self._vocabulary

    async def grammars(self) -> Grammars:
        """Return what answers can be held to, as JSON; made once.

        Raises:
            GrammarRefused: the model tells no text of its tokens.
            OpRejected: the stage that tokenizes cannot tell.
            StageFailure, ConnectionError: see `submit`.
        """
        from orchestrator.grammar.grammars import Grammars

        vocabulary = await self.vocabulary()
        async with self._asking:
            if self._grammars is None:
                ends = self.facts.eos_token_ids
                self._grammars = await asyncio.to_thread(Grammars, vocabulary, ends)
        return self._grammars

    async def score(self, prompt: str | Sequence[int], top_logprobs: int = 0) -> list[TokenScore]:
        """Return how likely each token of a text is, after those before it.

        Args:
            prompt: the text, or the ids of its tokens, at least one.
            top_logprobs: how many of the likeliest tokens to name at each place.

        Raises:
            TypeError: a value is of another type.
            RequestRefused: there are no tokens, or the last stage cannot score.
            OpRejected, StageFailure, ConnectionError: see `submit`.
        """
        from orchestrator.scoring import score

        check("prompt", prompt, Prompt)
        check("top_logprobs", top_logprobs, int)
        tokens: Sequence[int]
        if isinstance(prompt, str):
            tokens = await self.stages.tokenize(self._name(), prompt)
        else:
            tokens = tuple(prompt)
        return await score(self.stages, tokens, top_logprobs, self.prefill_chunk)

    def kill(self) -> None:
        """Send SIGKILL to every worker now; the end of the block is still owed."""
        self.stages.kill()
        if self._speculator is not None:
            self._speculator.kill()

    def _name(self) -> str:
        # A server that shares the pipeline names its requests in another way.
        return f"api-{next(self._numbers)}"
