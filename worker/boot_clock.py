"""Where the time between the start of a process and its ready line went."""

from __future__ import annotations

from worker.protocol.events import (
    Event,
    Imported,
    Importing,
    MemoryCheck,
    ModelLoadBreakdown,
)


class BootClock:
    """Shares the time between two events out to what was done in it."""

    def __init__(self) -> None:
        self._took_ms: dict[str, float] = {}
        self._marked_ms = 0.0

    def mark(self, event: Event, uptime_ms: float) -> None:
        """Note an event of the boot; the time since the one before goes to its name.

        What a breakdown of loading tells of is taken out of that: planning out of what went up to
        the memory check, weights and warm-up out of what went up to the breakdown itself.
        """
        since_ms, self._marked_ms = uptime_ms - self._marked_ms, uptime_ms
        if isinstance(event, Imported):
            self._add(f"import_{event.library}", since_ms)
        elif isinstance(event, Importing):
            self._add("check_path", since_ms)  # with huggingface_hub, which that takes
        elif isinstance(event, ModelLoadBreakdown):
            self._move(MemoryCheck.kind, "plan", event.plan_ms)
            self._add("wait_for_tokenizer", since_ms)
            self._move("wait_for_tokenizer", "weights", event.weights_ms)
            self._move("wait_for_tokenizer", "warmup", event.warmup_ms)
        else:
            self._add(event.kind, since_ms)

    def phases_ms(self) -> dict[str, float]:
        """Return the phases, rounded; they add up to the time of the last event."""
        return {name: round(took_ms, 1) for name, took_ms in self._took_ms.items()}

    def _add(self, name: str, took_ms: float) -> None:
        self._took_ms[name] = self._took_ms.get(name, 0.0) + took_ms

    def _move(self, of: str, to: str, took_ms: float) -> None:
        """Give a part of a phase a name of its own; never more than there is."""
        part_ms = min(took_ms, self._took_ms.get(of, 0.0))
        self._add(of, -part_ms)
        self._add(to, part_ms)
