"""Events in a few words, for a line of the start display."""

from __future__ import annotations

from orchestrator.placement.amounts import room_words, size_words
from worker.protocol.events import (
    BootProfile,
    CacheHit,
    CacheVerified,
    Device,
    DownloadProgress,
    Event,
    FetchingModel,
    HostSurveyed,
    Imported,
    Importing,
    LoadingModel,
    MemoryCheck,
    ModelFetched,
    ModelLoadBreakdown,
    ModelLoaded,
    ModelSurveyed,
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
            left = left_text(event)
            return (
                f"downloading {percent} % of {size_text(total)}, {mbps:.1f} MB/s"
                f"{f', {left} left' if left else ''}"
            )
        case HostSurveyed(free_bytes=free, device=device, read_gbps=read_gbps):
            return f"{room_words(free)} free on {device}, reads {read_gbps:.1f} GB/s"
        case ModelSurveyed(model_type=model_type):
            return f"read the model's headers ({model_type})"
        case CacheVerified(file=file, ok=ok):
            return f"{file} is {'whole' if ok else 'broken'}"
        case MemoryCheck(need_bytes=need, free_bytes=free):
            return f"needs {size_words(need)} of {room_words(free)} free"
        case LoadingModel(layer_range=layers, quantization=quantization):
            return f"loading layers {layers} ({quantization})"
        case UnknownEvent(fields=fields):
            return str(fields.get("event", "unknown event"))[:40]
    return _PLAIN.get(type(event), event.kind.removeprefix("pp_").replace("_", " "))


def left_text(progress: DownloadProgress) -> str:
    """Return how long the download goes on at the speed so far; "" where that is not known."""
    left_bytes = progress.bytes_total - progress.bytes_done
    if left_bytes <= 0 or progress.mbps <= 0:
        return ""
    left_s = left_bytes / (progress.mbps * 1e6)
    if left_s < 60:
        return f"{left_s:.0f} s"
    if left_s < 3600:
        return f"{left_s // 60:.0f} min {left_s % 60:.0f} s"
    return f"{left_s // 3600:.0f} h {left_s % 3600 // 60:.0f} min"


def size_text(size_bytes: int) -> str:
    """Return a size in the unit that suits it."""
    if size_bytes < 1e6:
        return f"{size_bytes / 1e3:.0f} kB"
    if size_bytes < 1e9:
        return f"{size_bytes / 1e6:.0f} MB"
    return f"{size_bytes / 1e9:.1f} GB"
