"""The prompt that several answers share."""

from __future__ import annotations

import asyncio

from orchestrator.failures import OpRejected
from orchestrator.generate import prompt_tokens
from orchestrator.request import DEFAULT_NEW_TOKENS, GenerationRequest
from orchestrator.serve.errors import refusal
from orchestrator.serve.limits import PROMPT_TOKENS_FLAG
from orchestrator.serve.openai.prompt_size import fewest_tokens
from orchestrator.serve.service import Service
from worker.protocol.errors import ErrorCode

TOO_LONG = "context_length_exceeded"


class Prompt:
    """Tokens that are made once, when the first answer has its place.

    Args:
        service: whose stages make them.
        request: has the prompt.
        param: the field that holds it.
        max_tokens_param: the field that bounds the answer.
    """

    def __init__(
        self, service: Service, request: GenerationRequest, param: str, max_tokens_param: str
    ) -> None:
        self._service = service
        self._request = request
        self._param = param
        self._max_tokens_param = max_tokens_param
        self._lock = asyncio.Lock()
        self._tokens: tuple[int, ...] | None = None

    async def tokens(self) -> tuple[int, ...]:
        """Return the ids.

        Raises:
            ApiError: there are none, or more than are allowed.
            OpRejected, StageFailure: see `prompt_tokens`.
        """
        async with self._lock:
            if self._tokens is None:
                await self._check_size()
                tokens = await self._made()
                self._check(len(tokens))
                self._tokens = tokens
        return self._tokens

    async def _made(self) -> tuple[int, ...]:
        try:
            return await prompt_tokens(self._service.pipeline.stages, self._request)
        except OpRejected as rejected:
            if rejected.code != ErrorCode.BAD_FIELD:
                raise
            # The tokenizer or the chat template does not take it; which stage said so is no matter.
            if (ours := "template_options") in rejected.text:
                theirs = "chat_template_kwargs"
                raise refusal(theirs, rejected.text.replace(ours, theirs)) from None
            raise refusal(self._param, rejected.text) from None

    async def _check_size(self) -> None:
        given, context = (
            self._service.limits.max_prompt_tokens,
            self._service.pipeline.facts.max_context,
        )
        limit = min((most for most in (given, context) if most), default=None)
        if limit is None:
            return
        fewest = await fewest_tokens(self._service.pipeline, self._request, limit)
        if fewest > limit:
            raise refusal(
                self._param,
                f"the prompt has at least {fewest} tokens, "
                + (f"{_at_most(limit)}" if limit == given else f"the context holds {limit}")
                + "; shorten it",
                code=TOO_LONG,
            )

    def new_tokens(self, num_tokens: int, wanted: int | None) -> int:
        """Return the most tokens to generate after `num_tokens`: what is wanted, or what fits.

        Raises:
            ApiError: they do not fit the context together.
        """
        facts, limits = self._service.pipeline.facts, self._service.limits
        context, limit = facts.max_context, limits.max_new_tokens
        if wanted is None:
            room = context and max(1, context - num_tokens)
            wanted = min((most for most in (room, limit) if most), default=DEFAULT_NEW_TOKENS)
        if context is None or num_tokens + wanted <= context:
            return wanted
        says = f"the prompt has {num_tokens} tokens and the context holds {context}"
        if num_tokens + min(wanted, 1) > context:
            raise refusal(
                self._param, f"{says}, which leaves no place; shorten the prompt", code=TOO_LONG
            )
        raise refusal(
            self._max_tokens_param,
            f"'{self._max_tokens_param}' is {wanted}, but {says}; ask for at most "
            f"{context - num_tokens}, or shorten the prompt",
            code=TOO_LONG,
        )

    def _check(self, num_tokens: int) -> None:
        limit = self._service.limits.max_prompt_tokens
        if not num_tokens:
            raise refusal(self._param, "the prompt is empty: it has no tokens; give some text")
        if limit is not None and num_tokens > limit:
            raise refusal(
                self._param,
                f"the prompt has {num_tokens} tokens, {_at_most(limit)}; shorten it",
                code=TOO_LONG,
            )


def _at_most(limit: int) -> str:
    return f"at most {limit} are taken here ({PROMPT_TOKENS_FLAG} of the server)"
