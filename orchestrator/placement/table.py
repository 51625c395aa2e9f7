"""A plan as a table for people."""

from __future__ import annotations

from collections import Counter

from orchestrator.bundle.screen import Screen, Table
from orchestrator.placement.amounts import room_words, size_words, step_words
from orchestrator.placement.misfit import DoesNotFit, Shortfall
from orchestrator.placement.placement import PlacedStage, Placement

_HEADINGS = (
    ">#",
    "host",
    ">layers",
    ">weights",
    ">KV",
    ">scratch",
    ">need",
    ">free",
    ">download",
    ">ms/token",
)


def show_placement(placement: Placement, screen: Screen) -> None:
    """Print the stages, what speed to expect, and the notes."""
    rows = tuple(_row(index, stage) for index, stage in enumerate(placement.stages))
    screen.table(Table(_HEADINGS, rows))
    screen.line(_summary(placement))
    for note in placement.notes:
        screen.line(f"note: {note}", "yellow")


def show_misfit(misfit: DoesNotFit, screen: Screen) -> None:
    """Print what each host could hold."""
    rows = tuple(
        (
            shortfall.host,
            _held(shortfall),
            size_words(shortfall.need_bytes),
            room_words(shortfall.free_bytes),
            size_words(shortfall.download_bytes),
            room_words(shortfall.disk_bytes),
        )
        for shortfall in misfit.shortfalls
    )
    headings = ("host", ">could hold", ">need", ">free", ">download", ">disk free")
    screen.table(Table(headings, rows))


def _held(shortfall: Shortfall) -> str:
    if shortfall.layers is None:
        return "none"
    layers = f"{shortfall.layers[0]}:{shortfall.layers[1]}"
    return layers if shortfall.fits else f"not {layers}"


def _row(index: int, stage: PlacedStage) -> tuple[str, ...]:
    slot = stage.slot
    where = f"{slot.host} {slot.device}" if slot.device != "cpu" else slot.host
    if slot.quantization != "bfloat16":
        where = f"{where} {slot.quantization}"
    return (
        str(index),
        where,
        f"{stage.layers[0]}:{stage.layers[1]}",
        size_words(stage.weights_bytes),
        size_words(stage.kv_bytes),
        size_words(stage.scratch_bytes + stage.process_bytes),
        size_words(stage.need_bytes),
        room_words(stage.free_bytes),
        size_words(stage.download_bytes) if stage.download_groups else "-",
        "?" if stage.step_ms is None else step_words(stage.step_ms),
    )


def _summary(placement: Placement) -> str:
    stages = len(placement.stages)
    parts = [f"{placement.num_layers} layers on {stages} stage{'s' if stages > 1 else ''}"]
    fetched_bytes = placement.download_bytes
    parts.append(f"{size_words(fetched_bytes)} to fetch" if fetched_bytes else "nothing to fetch")
    if placement.tokens_per_s is not None:
        parts.append(f"at most about {placement.tokens_per_s:.3g} tokens/s for one request")
        devices = Counter(stage.slot.shared_device for stage in placement.stages)
        if max(devices.values()) > 1:
            parts.append(
                "whose stages on one device take turns (ms/token is while all of them read at once)"
            )
    return ", ".join(parts)
