"""What several ways gave for one question, round after round, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tools.bench.answers import FIGURES, Answers, figures, ratios, shared_beginning
from tools.bench.rounds import spread

STAGELINE, PLAIN, LLAMA = "stageline", "transformers", "llama.cpp RPC"
_TITLES = ("prefill tok/s", "decode tok/s", "new tok/s in all")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answers of all rounds, by the number of requests at once and by way."""

    found: dict[int, dict[str, list[Answers]]]

    @staticmethod
    def of(streams: tuple[int, ...]) -> Comparison:
        """Return one without answers yet."""
        return Comparison({count: {} for count in streams})

    def add(self, count: int, name: str, answers: Answers) -> None:
        """Keep what a way gave in a round."""
        self.found[count].setdefault(name, []).append(answers)

    @property
    def is_same(self) -> bool:
        """Tell whether each request had one answer, of Stageline's and of transformers', always."""
        seen: dict[int, set[tuple[int, ...]]] = {}
        for ways in self.found.values():
            for answers in (*ways[STAGELINE], *ways.get(PLAIN, ())):
                for number, ids in enumerate(answers.token_ids):
                    seen.setdefault(number, set()).add(ids)
        return all(len(ids) == 1 for ids in seen.values())

    def report(self) -> str:
        """Format the tables; the ratios are Stageline's medians by the others'."""
        lines = []
        for count, ways in self.found.items():
            title = f"{count} at once" if count > 1 else "one request"
            lines.append(f"{title:14}" + "".join(f" {name:>26}" for name in _TITLES))
            for name, answers in ways.items():
                values = figures(answers)
                cells = (spread(values[figure], 1) for figure in FIGURES)
                lines.append(f"{name:14}" + "".join(f" {cell:>26}" for cell in cells))
            for name, by in self._ratios(count).items():
                words = ", ".join(f"{by[figure]:.2f}" for figure in FIGURES)
                lines.append(f"stageline by {name}: {words}")
            lines.append("")
        if self.same_as_llama:
            lines.append(f"llama.cpp's first tokens that are Stageline's: {self.same_as_llama}")
        return "\n".join([*lines, self._verdict()])

    @property
    def same_as_llama(self) -> str | None:
        """How many tokens of llama.cpp's answers to one request are Stageline's; for people."""
        for ways in self.found.values():
            if LLAMA in ways:
                mine, theirs = ways[STAGELINE][0].token_ids[0], ways[LLAMA][0].token_ids[0]
                return f"{shared_beginning(mine, theirs)} of {len(mine)}"
        return None

    def as_json(self) -> dict[str, Any]:
        """Return all that was measured."""
        return {
            "streams": {
                str(count): {
                    "ways": {name: figures(answers) for name, answers in ways.items()},
                    "ratios": self._ratios(count),
                }
                for count, ways in self.found.items()
            },
            "same_tokens": self.is_same,
            "same_as_llama": self.same_as_llama,
        }

    def _ratios(self, count: int) -> dict[str, dict[str, float]]:
        ways = self.found[count]
        return {
            name: ratios(ways[STAGELINE], answers)
            for name, answers in ways.items()
            if name != STAGELINE
        }

    def _verdict(self) -> str:
        yes = "yes" if self.is_same else "NO"
        if any(PLAIN in ways for ways in self.found.values()):
            return f"the same tokens as transformers: {yes}"
        return f"the same tokens whenever asked: {yes}"
