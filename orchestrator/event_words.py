"""Events in a few words, for a line of the start display."""

from __future__ import annotations

from worker.protocol.events import (
    BootProfile,
    CacheHit,
    Device,
    DownloadProgress,
    Event,
    FetchingModel,
    Imported,
    Importing,
    LoadingModel,
    MemoryCheck,
    ModelFetched,
    ModelLoadBreakdown,
    ModelLoaded,
    Starting,
    UnknownEvent,
    WorkerReady,
)

_PLAIN: dict[type[Event], str] = {
    Starting: "starting",
    CacheHit: "model is on disk",
    ModelFetched: "model fetched",
    ModelLoaded: "warming up",
    ModelLoadBreakdown: "warming up",
    WorkerReady: "ready",
    BootProfile: "ready",
}


def words_of(event: Event) -> str:
    """Return what the stage is doing, in a few words."""
    match event:
        case Importing(library=library):
            return f"importing {library}"
        case Imported(library=library):
            return f"imported {library}"
        case Device(device=device):
            return f"using {device}"
        case FetchingModel():
            return "looking for the model"
        case DownloadProgress(bytes_done=done, bytes_total=total, mbps=mbps):
            percent = 100 * done // max(1, total)
            return f"downloading {percent} % of {size_text(total)}, {mbps:.1f} MB/s"
        case MemoryCheck(need_bytes=need, free_bytes=free):
            return f"needs {size_text(need)} of {size_text(free)} free"
        case LoadingModel(layer_range=layers, quantization=quantization):
            return f"loading layers {layers} ({quantization})"
        case UnknownEvent(fields=fields):
            return str(fields.get("event", "unknown event"))[:40]
    return _PLAIN.get(type(event), event.kind.removeprefix("pp_").replace("_", " "))


def size_text(size_bytes: int) -> str:
    """Return a size in the unit that suits it."""
    if size_bytes < 1e9:
        return f"{size_bytes / 1e6:.0f} MB"
    return f"{size_bytes / 1e9:.1f} GB"
