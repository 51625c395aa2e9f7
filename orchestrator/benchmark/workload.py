"""The requests of a bench: plain text of about the wanted length, no two alike."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.request import GenerationRequest
from orchestrator.stages import Stages

_TEXT = (
    "The river had risen during the night, and by the morning the lower meadow lay under water; "
    "the farmer counted his sheep on the hill, found all of them there, and went to mend the fence "
    "before the rain came back from the west as the old people of the village said it would. "
)
_TRIAL_WORDS = 200


@dataclass(frozen=True, slots=True)
class Workload:
    """Makes the requests.

    Attributes:
        num_words: words of each prompt.
        new_tokens: tokens that each request generates; end-of-text tokens do not end it.
    """

    num_words: int
    new_tokens: int
    prefill_chunk: int

    @staticmethod
    async def fitted(
        pipeline: Stages, *, prompt_tokens: int, new_tokens: int, prefill_chunk: int
    ) -> Workload:
        """Return prompts of about `prompt_tokens` tokens, as the model's tokenizer counts."""
        trial = await pipeline.tokenize("bench-words", _words(_TRIAL_WORDS), None)
        num_words = round(prompt_tokens * _TRIAL_WORDS / max(1, len(trial)))
        return Workload(max(1, num_words - 1), new_tokens, prefill_chunk)

    def request(self, number: int) -> GenerationRequest:
        """Return one request; `number` tells it from all others of the bench."""
        return GenerationRequest(
            request_id=f"bench-{number}",
            prompt=f"{number} {_words(self.num_words)}",
            max_new_tokens=self.new_tokens,
            ignore_eos=True,
            prefill_chunk=self.prefill_chunk,
        )


def _words(count: int) -> str:
    words = _TEXT.split()
    return " ".join(words[index % len(words)] for index in range(count))
