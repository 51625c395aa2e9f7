"""Every millisecond between the start of a process and its ready line is in one phase."""

from __future__ import annotations

from worker.boot_clock import BootClock
from worker.protocol.events import (
    CacheHit,
    Event,
    Imported,
    Importing,
    MemoryCheck,
    ModelLoadBreakdown,
    WorkerReady,
)


def breakdown(**took_ms: float) -> ModelLoadBreakdown:
    values = {"plan_ms": 0.0, "weights_ms": 0.0, "warmup_ms": 0.0, "tokenizer_ms": 0.0}
    return ModelLoadBreakdown(**{**values, **took_ms}, num_tensors=1)


def check() -> MemoryCheck:
    sizes = ("weights", "kv", "scratch", "process", "need", "free")
    return MemoryCheck(
        device="cpu", fits=True, limit="memory", **{f"{name}_bytes": 0 for name in sizes}
    )


def profile(*marks: tuple[Event, float]) -> dict[str, float]:
    clock = BootClock()
    for event, uptime_ms in marks:
        clock.mark(event, uptime_ms)
    return clock.phases_ms()


def test_an_import_is_named_after_its_library_and_other_time_after_the_event_that_ends_it() -> None:
    found = profile(
        (Importing(library="torch"), 100.0),
        (Imported(library="torch", elapsed_ms=900), 1000.04),
        (WorkerReady(layer_range="0:2"), 1010.0),
    )
    assert found == {"check_path": 100.0, "import_torch": 900.0, "pp_worker_ready": 10.0}


def test_the_parts_of_loading_are_taken_out_of_the_events_that_end_them() -> None:
    found = profile(
        (check(), 50.0),
        (CacheHit(bytes_total=1), 60.0),
        (breakdown(plan_ms=20, weights_ms=100, warmup_ms=30, tokenizer_ms=110), 200.0),
    )
    assert found == {
        "memory_check": 30.0,
        "pp_cache_hit": 10.0,
        "plan": 20.0,
        "wait_for_tokenizer": 10.0,
        "weights": 100.0,
        "warmup": 30.0,
    }


def test_parts_that_claim_more_than_there_was_add_up_to_what_there_was() -> None:
    found = profile((breakdown(plan_ms=5, weights_ms=90, warmup_ms=90), 100.0))
    assert sum(found.values()) == 100.0
    assert found["warmup"] == 10.0
