"""Print the parts of a report that are about stages: what ran where, their start, their memory."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.bundle.fetch_facts import FetchFacts
from orchestrator.bundle.screen import Screen, Table
from orchestrator.bundle.stage_facts import StageFacts
from orchestrator.bundle.startup import Phase, Start
from orchestrator.bundle.words import printable, size, span

BAR_WIDTH = 24


def show_stages(stages: tuple[StageFacts, ...], screen: Screen) -> None:
    """Print what ran where."""
    if not stages:
        return
    screen.heading("What ran where")
    rows = [
        (
            str(stage.stage),
            printable(stage.host, 28),
            _text(stage.transport),
            _layers(stage),
            _text(stage.device),
            "-" if stage.threads is None else str(stage.threads),
            _text(stage.quantization),
            stage.state,
        )
        for stage in stages
    ]
    headings = ("stage", "host", "via", "layers", "device", ">threads", "weights", "state")
    screen.table(Table(headings, tuple(rows)))
    _lines_by_stage(stages, [_model(stage) for stage in stages], screen)
    _lines_by_stage(stages, [_versions(stage) for stage in stages], screen)
    for stage in stages:
        for note in stage.notes:
            screen.line(f"  stage {stage.stage}: {printable(note)}")


def _lines_by_stage(stages: Iterable[StageFacts], texts: list[str], screen: Screen) -> None:
    """Print one line where all stages agree, else one for each."""
    if len(set(texts)) == 1:
        if texts[0]:
            screen.line(f"  {texts[0]}")
        return
    for stage, text in zip(stages, texts, strict=True):
        screen.line(f"  stage {stage.stage}: {text or 'unknown'}")


def _model(stage: StageFacts) -> str:
    named = [printable(stage.model_id, 200)] if stage.model_id else []
    named += [f"({printable(stage.model_type, 40)})"] if stage.model_type else []
    return " ".join(["model", *named]) if named else ""


def _versions(stage: StageFacts) -> str:
    if stage.version is None:
        return ""
    named = {
        "stageline": stage.version,
        "protocol": stage.protocol_version,
        "python": stage.python,
        "torch": stage.torch,
        "transformers": stage.transformers,
    }
    return printable(", ".join(f"{name} {value}" for name, value in named.items() if value))


def show_starts(starts: tuple[Start, ...], screen: Screen) -> None:
    """Print the timelines of the starts."""
    if not starts:
        return
    screen.heading("Start-up (from the start of the run)")
    ends = [phase.start_ms + (phase.took_ms or 0) for start in starts for phase in start.phases]
    end_ms = max([start.ready_ms or 0 for start in starts] + ends)
    for start in starts:
        ready = "never ready" if start.ready_ms is None else f"ready after {span(start.ready_ms)}"
        host = printable(start.host, 40)
        hello = span(start.hello_ms)
        screen.line(f"  stage {start.stage} on {host}: first line after {hello}, {ready}")
        rows = tuple(
            (
                "   " + printable(phase.name, 36),
                span(max(0.0, phase.start_ms)),
                "no end" if phase.took_ms is None else span(phase.took_ms),
                _bar(phase, end_ms),
            )
            for phase in start.phases
        )
        screen.table(Table(("   phase", ">from", ">took", ""), rows))
        parts = [f"{name} {span(took_ms)}" for name, took_ms in start.loading_ms.items()]
        if parts:
            screen.line(f"     the parts of loading: {', '.join(parts)}")


def _bar(phase: Phase, end_ms: float) -> str:
    """Draw where a phase lies between the run's start and the last stage's being ready."""
    if not 0 < end_ms < float("inf"):
        return ""
    scale = BAR_WIDTH / end_ms
    begin = int(min(BAR_WIDTH - 1, max(0.0, phase.start_ms) * scale))
    if phase.took_ms is None:
        return "." * begin + "?" * (BAR_WIDTH - begin)
    length = int(min(BAR_WIDTH - begin, max(1.0, phase.took_ms * scale)))
    return "." * begin + "#" * length + "." * (BAR_WIDTH - begin - length)


def show_fetches(stages: tuple[StageFacts, ...], screen: Screen) -> None:
    """Print what each stage fetched, and how fast."""
    rows = tuple(
        (str(stage.stage), printable(stage.host, 24), *_fetch_cells(stage.fetch))
        for stage in stages
        if stage.fetch is not None and stage.fetch.is_telling
    )
    if rows:
        screen.heading("Weights (size: of the stage's tensors; fetched: over the network)")
        columns = (">size", ">fetched", ">took", ">MB/s", "")
        screen.table(Table(("stage", "host", *columns), rows))


def _fetch_cells(fetch: FetchFacts) -> tuple[str, ...]:
    words = {"hit": "all was here", "fetched": "", "failed": "failed", "cut": "no end"}[fetch.state]
    notes = [words] if words else []
    if fetch.left_bytes:
        notes.append(f"{size(fetch.left_bytes)} were here")
    if fetch.cleaned_bytes:
        notes.append(f"{size(fetch.cleaned_bytes)} of left-overs removed")
    if fetch.reason:
        notes.append(fetch.reason)
    came = fetch.elapsed_ms > 0
    return (
        size(fetch.total_bytes),
        size(fetch.fetched_bytes) if came else "-",
        span(fetch.elapsed_ms) if came else "-",
        f"{fetch.mbps:.1f}" if came else "-",
        printable(", ".join(notes), 44),
    )


def show_memory(stages: tuple[StageFacts, ...], screen: Screen) -> None:
    """Print what was predicted and what was measured."""
    rows = tuple(
        (
            str(stage.stage),
            printable(stage.host, 24),
            _size(stage.need_bytes),
            _size(stage.weights_bytes),
            _size(stage.kv_bytes),
            _size(stage.free_bytes),
            _size(stage.held_bytes),
            _size(stage.rss_bytes),
            _size(stage.peak_rss_bytes),
        )
        for stage in stages
        if stage.need_bytes is not None or stage.rss_bytes is not None
    )
    if rows:
        screen.heading("Memory (need, weights, KV: predicted; held, RSS, peak: measured)")
        columns = (">need", ">weights", ">KV", ">free", ">held", ">RSS", ">peak")
        screen.table(Table(("stage", "host", *columns), rows))


def _layers(stage: StageFacts) -> str:
    if stage.layers is None:
        return "-"
    return stage.layers + (f" of {stage.num_layers}" if stage.num_layers else "")


def _text(value: str | None) -> str:
    return printable(value, 20) if value else "-"


def _size(value: float | None) -> str:
    return "-" if value is None else size(value)
