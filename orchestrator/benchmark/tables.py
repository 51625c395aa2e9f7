"""The figures of a bench as tables for people."""

from __future__ import annotations

from orchestrator.benchmark.guess_result import GuessedText, GuessResult
from orchestrator.benchmark.result import BenchResult, LevelResult, StageResult
from orchestrator.bundle.screen import Screen, Table
from orchestrator.bundle.words import printable, size, span

STAGE_HEADINGS = (
    ">stage",
    "host",
    ">layers",
    ">threads",
    ">compute ms",
    ">wire ms",
    ">idle ms",
    ">weights",
    ">GB/s",
    ">of memory",
)
LEVEL_HEADINGS = (
    ">requests",
    ">tokens/s in all",
    ">x one",
    ">tokens/s each",
    ">first token ms",
    ">longest gap ms",
    ">stages busy",
)
GUESS_HEADINGS = (
    "text",
    ">tokens/s without",
    ">tokens/s with",
    ">x",
    ">guessed",
    ">of them right",
    "tokens",
)
_UNKNOWN = "-"


def show_result(result: BenchResult, screen: Screen) -> None:
    """Print everything."""
    screen.line(headline(result))
    screen.line(method(result))
    screen.heading("One request alone")
    screen.table(Table(("", ">"), alone_rows(result)))
    screen.heading("Where the time of one of its tokens goes")
    screen.table(Table(STAGE_HEADINGS, tuple(stage_row(stage) for stage in result.stages)))
    if len(result.levels) > 1:
        screen.heading("Several requests at once")
        screen.table(Table(LEVEL_HEADINGS, level_rows(result)))
    if result.guesses is not None:
        screen.heading(guess_heading(result.guesses))
        screen.table(Table(GUESS_HEADINGS, guess_rows(result.guesses)))
        screen.line(guess_method(result.guesses))


def headline(result: BenchResult) -> str:
    """Return what was measured."""
    stages = "1 stage" if len(result.stages) == 1 else f"{len(result.stages)} stages"
    versions = ", ".join(f"{name} {value}" for name, value in result.versions.items())
    return (
        f"{printable(result.model, 200)}, {result.quantization}, {stages}, ready after "
        f"{span(result.ready_ms)} ({printable(versions)})"
    )


def method(result: BenchResult) -> str:
    """Return how it was measured, with the request that no figure has in it."""
    rounds = "1 round" if result.rounds == 1 else f"{result.rounds} rounds in turn"
    return (
        f"{result.prompt_tokens} prompt and {result.new_tokens} new tokens a request, {rounds}, "
        "medians (lowest-highest); not in them: one request before, first token after "
        f"{span(result.first.ttft_ms)}, {result.first.tokens_per_s:.1f} tokens/s"
    )


def alone_rows(result: BenchResult) -> tuple[tuple[str, str], ...]:
    """Return name and figure."""
    return (
        ("first token, ms", result.ttft_ms.words(0)),
        ("prefill, tokens/s", result.prefill_tokens_per_s.words()),
        ("decode, tokens/s", result.decode_tokens_per_s.words()),
        ("one token, ms", result.token_ms.words(2)),
    )


def stage_row(stage: StageResult) -> tuple[str, ...]:
    """Return the cells under `STAGE_HEADINGS`."""
    share, gbps = stage.bandwidth_share, stage.read_gbps
    return (
        str(stage.stage),
        printable(stage.host, 40),
        f"{stage.layers[0]}:{stage.layers[1]}",
        stage.threads or _UNKNOWN,
        stage.compute_ms.words(2),
        stage.wire_ms.words(2),
        stage.idle_ms.words(2),
        _UNKNOWN if stage.read_bytes is None else size(stage.read_bytes),
        _UNKNOWN if gbps is None else f"{gbps:.1f}",
        _UNKNOWN if share is None else f"{share:.0%} of {stage.memory_gbps:.1f}",
    )


def level_rows(result: BenchResult) -> tuple[tuple[str, ...], ...]:
    """Return the cells under `LEVEL_HEADINGS`, a row for each number of requests."""
    one = result.levels[0].tokens_per_s.median
    return tuple(_level_row(level, one) for level in result.levels)


def _level_row(level: LevelResult, one_tokens_per_s: float) -> tuple[str, ...]:
    return (
        str(level.streams),
        level.tokens_per_s.words(),
        f"{level.tokens_per_s.median / max(one_tokens_per_s, 1e-9):.2f}",
        level.each_tokens_per_s.words(),
        level.ttft_ms.words(0),
        level.longest_gap_ms.words(0),
        " ".join(f"{figure.median:.0%}" for figure in level.busy),
    )


def guess_heading(guesses: GuessResult) -> str:
    """Return who guessed."""
    if guesses.draft_model is None:
        return "Tokens guessed ahead, from what the text had before"
    return f"Tokens guessed ahead, by {printable(guesses.draft_model, 200)}"


def guess_rows(guesses: GuessResult) -> tuple[tuple[str, ...], ...]:
    """Return the cells under `GUESS_HEADINGS`, a row for each text."""
    return tuple(_guess_row(text) for text in guesses.texts)


def _guess_row(text: GuessedText) -> tuple[str, ...]:
    share = text.accepted_share
    return (
        text.name,
        text.plain_tokens_per_s.words(),
        text.guessed_tokens_per_s.words(),
        text.ratio.words(2),
        str(text.guessed_tokens),
        _UNKNOWN if share is None else f"{share:.0%}",
        "the same" if text.same_tokens else "DIFFERENT",
    )


def guess_method(guesses: GuessResult) -> str:
    """Return what the texts are, with the answers that no figure has in it."""
    texts = "; ".join(
        f"{text.name}: {text.about}, {text.prompt_tokens} prompt tokens" for text in guesses.texts
    )
    first = ", ".join(f"{text.first_tokens_per_s:.1f}" for text in guesses.texts)
    return f"{texts}; not in them: one guessed answer to each before, {first} tokens/s"
