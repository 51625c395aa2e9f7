"""Answers whose tokens are guessed ahead, and the same answers without, in turn."""

from __future__ import annotations

from collections import defaultdict

from orchestrator.benchmark.figure import Figure
from orchestrator.benchmark.guess_result import GuessedText, GuessResult
from orchestrator.benchmark.stream import StreamSample, run_streams
from orchestrator.benchmark.tap import Tap
from orchestrator.benchmark.texts import TEXTS, Text
from orchestrator.benchmark.workload import Workload
from orchestrator.speculation.speculator import Speculator
from orchestrator.stages import Stages
from orchestrator.stderr import say


class GuessRounds:
    """Asks for each text both ways, one request at a time, and keeps the samples."""

    def __init__(
        self, pipeline: Stages, tap: Tap, workload: Workload, speculator: Speculator
    ) -> None:
        self._pipeline = pipeline
        self._tap = tap
        self._workload = workload
        self._speculator = speculator
        self._asked = 0
        self._first: dict[str, StreamSample] = {}
        self._plain: dict[str, list[StreamSample]] = defaultdict(list)
        self._guessed: dict[str, list[StreamSample]] = defaultdict(list)

    async def warm_up(self) -> None:
        """Guess each text once: workers compare their kernels when they first get several rows."""
        for text in TEXTS:
            self._first[text.name] = await self._ask(text, self._speculator)

    async def run(self, number: int, rounds: int) -> None:
        """Run a round; odd ones begin with guesses."""
        ways = ((self._plain, None), (self._guessed, self._speculator))
        for text in TEXTS:
            say(f"round {number + 1} of {rounds}: {text.name}, with guesses and without")
            for samples, speculator in ways if number % 2 == 0 else reversed(ways):
                samples[text.name].append(await self._ask(text, speculator))

    async def _ask(self, text: Text, speculator: Speculator | None) -> StreamSample:
        self._asked += 1
        request = text.request(
            f"bench-text-{self._asked}", self._workload.new_tokens, self._workload.prefill_chunk
        )
        (sample,) = await run_streams(self._pipeline, [request], self._tap, speculator)
        return sample

    def result(self, draft_model: str | None) -> GuessResult:
        """Return what was found; `draft_model` as the user named it."""
        return GuessResult(
            draft_model=draft_model,
            texts=tuple(
                guessed_text(
                    text, self._first[text.name], self._plain[text.name], self._guessed[text.name]
                )
                for text in TEXTS
            ),
        )


def guessed_text(
    text: Text, first: StreamSample, plain: list[StreamSample], guessed: list[StreamSample]
) -> GuessedText:
    """Return the figures of a text, from one sample of each way and round."""
    pairs = list(zip(plain, guessed, strict=True))
    counts = [sample.guesses for sample in guessed if sample.guesses is not None]
    return GuessedText(
        name=text.name,
        about=text.about,
        prompt_tokens=first.prompt_tokens,
        first_tokens_per_s=first.decode_tokens_per_s,
        plain_tokens_per_s=Figure.of(sample.decode_tokens_per_s for sample in plain),
        guessed_tokens_per_s=Figure.of(sample.decode_tokens_per_s for sample in guessed),
        ratio=Figure.of(b.decode_tokens_per_s / a.decode_tokens_per_s for a, b in pairs),
        guessed_tokens=sum(count.drafted for count in counts),
        right_guesses=sum(count.accepted for count in counts),
        same_tokens=len({sample.token_ids for sample in (first, *plain, *guessed)}) == 1,
    )
