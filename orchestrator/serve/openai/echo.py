"""The prompt as the beginning of the answer's text."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.serve.openai.token_logprob import TokenLogprob
from orchestrator.serve.service import Service


class Echo:
    """Repeats a prompt, and tells how likely its tokens were where that is asked for.

    Args:
        service: has the stages.
        request_id: names what is asked of them.
        text: of the prompt; None where it came as token ids.
        top_logprobs: likeliest tokens to tell at each place; None tells no probability.
    """

    def __init__(
        self, service: Service, request_id: str, text: str | None, top_logprobs: int | None
    ) -> None:
        self._pipeline = service.pipeline
        self._request_id = request_id
        self._text = text
        self._top_logprobs = top_logprobs

    async def of(self, tokens: Sequence[int]) -> tuple[str, tuple[TokenLogprob, ...]]:
        """Return the text of the prompt and the log probabilities of its tokens.

        Raises:
            OpRejected, StageFailure: see `Pipeline.score`.
        """
        text = self._text
        if text is None:
            text = await self._pipeline.stages.detokenize(self._request_id, tokens)
        if self._top_logprobs is None:
            return text, ()
        scores = await self._pipeline.score(tokens, top_logprobs=self._top_logprobs)
        return text, tuple(
            TokenLogprob(
                token_id=score.token_id,
                logprob=score.logprob,
                top=tuple(zip(score.top_tokens, score.top_logprobs, strict=True)),
            )
            for score in scores
        )
