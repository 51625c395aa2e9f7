"""Every event: one frozen dataclass per kind. No event literal exists outside this file.

An event line is `{"event": kind, …fields, "stage", "wall_ms", "uptime_ms"}`; the emitter adds the
last three. An event never has a top-level `request_id` (an op event names it `rid`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from worker.protocol.ops import RequestId
from worker.protocol.schema import (
    FLAG,
    INTEGER,
    NON_NEGATIVE,
    NON_NEGATIVE_NUMBER,
    OBJECT,
    POSITIVE,
    REQUEST_ID,
    TEXT,
    TEXTS,
    rule,
)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something a worker tells about itself. `kind` is fixed by the class."""

    kind: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """What the emitter adds to every event."""

    stage: int | None = rule(NON_NEGATIVE, "the worker's stage index, if it has one", None)
    wall_ms: float = rule(NON_NEGATIVE_NUMBER, "milliseconds since the Unix epoch, UTC", 0.0)
    uptime_ms: float = rule(NON_NEGATIVE_NUMBER, "milliseconds since the process started", 0.0)


@dataclass(frozen=True, kw_only=True)
class Starting(Event):
    """The handshake: the first line a worker writes, before anything heavy is imported."""

    kind: ClassVar[str] = "starting"
    protocol_version: str = rule(TEXT, "`major.minor`; another major is refused")
    version: str = rule(TEXT, "product version")
    python: str = rule(TEXT, "python version")
    torch: str | None = rule(TEXT, "installed torch version, without importing it", None)
    transformers: str | None = rule(TEXT, "installed transformers version", None)
    pid: int = rule(NON_NEGATIVE, "process id on its host")
    host: str = rule(TEXT, "host name")
    nonce: str | None = rule(TEXT, "what `--nonce` gave", None)
    stub: bool = rule(FLAG, "whether this is a stub worker", False)
    oom_kills: int | None = rule(
        NON_NEGATIVE, "processes that this host's kernel has killed for want of memory so far", None
    )


@dataclass(frozen=True, kw_only=True)
class Device(Event):
    """The device that will compute."""

    kind: ClassVar[str] = "device"
    device: str = rule(TEXT, "cpu, cuda:0, mps")
    name: str | None = rule(TEXT, "model name of the processor or card", None)
    threads: int | None = rule(NON_NEGATIVE, "compute threads, on a CPU", None)
    free_bytes: int | None = rule(NON_NEGATIVE, "free memory of the device", None)
    total_bytes: int | None = rule(NON_NEGATIVE, "memory of the device", None)


@dataclass(frozen=True, kw_only=True)
class Importing(Event):
    """A slow import begins."""

    kind: ClassVar[str] = "importing"
    library: str = rule(TEXT, "package name")


@dataclass(frozen=True, kw_only=True)
class Imported(Event):
    """A slow import ended."""

    kind: ClassVar[str] = "imported"
    library: str = rule(TEXT, "package name")
    elapsed_ms: float = rule(NON_NEGATIVE_NUMBER, "how long it took")


@dataclass(frozen=True, kw_only=True)
class FetchingModel(Event):
    """The model is being looked for, and fetched where it is not here."""

    kind: ClassVar[str] = "fetching_model"
    model_id: str = rule(TEXT, "folder or hub id")


@dataclass(frozen=True, kw_only=True)
class CacheHit(Event):
    """Every byte the stage needs is on disk; the network is not touched."""

    kind: ClassVar[str] = "pp_cache_hit"
    bytes_total: int = rule(NON_NEGATIVE, "bytes of the stage's tensors")


@dataclass(frozen=True, kw_only=True)
class CacheOrphanCleaned(Event):
    """A left-over of an interrupted download was removed."""

    kind: ClassVar[str] = "pp_cache_orphan_cleaned"
    file: str = rule(TEXT, "file name")
    bytes_freed: int = rule(NON_NEGATIVE, "bytes freed")


@dataclass(frozen=True, kw_only=True)
class DownloadProgress(Event):
    """How far the download is; none on a cache hit."""

    kind: ClassVar[str] = "pp_download_progress"
    stage_index: int | None = rule(NON_NEGATIVE, "the stage that fetches", None)
    bytes_done: int = rule(NON_NEGATIVE, "bytes here so far")
    bytes_total: int = rule(NON_NEGATIVE, "bytes needed")
    bytes_fetched: int | None = rule(
        NON_NEGATIVE, "bytes that came over the network to this process; the rate is of these", None
    )
    elapsed_ms: float = rule(NON_NEGATIVE_NUMBER, "since the download began")
    mbps: float = rule(NON_NEGATIVE_NUMBER, "megabytes (10^6) a second so far")


@dataclass(frozen=True, kw_only=True)
class DownloadFailed(Event):
    """The download was given up."""

    kind: ClassVar[str] = "pp_download_failed"
    reason: str = rule(TEXT, "one sentence")


@dataclass(frozen=True, kw_only=True)
class ModelFetched(Event):
    """The files the stage needs are on disk."""

    kind: ClassVar[str] = "model_fetched"
    bytes_total: int = rule(NON_NEGATIVE, "bytes of the stage's tensors")
    elapsed_ms: float = rule(NON_NEGATIVE_NUMBER, "how long it took")


@dataclass(frozen=True, kw_only=True)
class HostSurveyed(Event):
    """What a host has to offer (`--only survey`); nothing of a model is held then."""

    kind: ClassVar[str] = "host_surveyed"
    host: str = rule(TEXT, "host name")
    machine: str = rule(TEXT, "same for all processes that share the memory of one machine")
    device: str = rule(TEXT, "cpu, cuda:0, mps: where a stage would compute")
    device_name: str | None = rule(TEXT, "model name of the processor or card", None)
    devices: tuple[str, ...] = rule(TEXTS, "every device that the host has", ())
    threads: int = rule(NON_NEGATIVE, "compute threads, on a CPU", 0)
    free_bytes: int = rule(NON_NEGATIVE, "free on the device, the libraries already loaded")
    total_bytes: int = rule(NON_NEGATIVE, "memory of the device")
    limit: str = rule(TEXT, "what bounds free_bytes: memory, cgroup, device, or a given limit")
    resident_bytes: int = rule(NON_NEGATIVE, "what the libraries of one worker hold of it")
    read_gbps: float = rule(
        NON_NEGATIVE_NUMBER, "10^9 bytes of bfloat16 weights a second that one row is multiplied by"
    )
    memory_gbps: float = rule(
        NON_NEGATIVE_NUMBER, "10^9 bytes a second that its threads read from memory at best", 0.0
    )
    disk_free_bytes: int = rule(NON_NEGATIVE, "free where weights are kept")
    cache_path: str = rule(TEXT, "the folder where weights are kept")
    cached_groups: dict[str, list[str]] = rule(
        OBJECT, "by commit: groups of the model's tensors that are here, whole"
    )
    cached_files: dict[str, list[str]] = rule(
        OBJECT, "by commit: weight files of the model that are here, whole"
    )


@dataclass(frozen=True, kw_only=True)
class ModelSurveyed(Event):
    """What a model needs, from its config and the headers of its weight files alone."""

    kind: ClassVar[str] = "model_surveyed"
    model_id: str = rule(TEXT, "folder or hub id")
    commit: str | None = rule(TEXT, "the hub's commit that the revision names", None)
    model_type: str = rule(TEXT, "the architecture")
    max_context: int = rule(POSITIVE, "positions that caches and temporaries are counted for")
    prefill_chunk: int = rule(POSITIVE, "rows of a forward that temporaries are counted for")
    fetched_bytes: int = rule(NON_NEGATIVE, "bytes of headers read over the network")
    elapsed_ms: float = rule(NON_NEGATIVE_NUMBER, "how long it took")
    costs: dict[str, Any] = rule(OBJECT, "bytes by layer and role: see `worker.protocol.costs`")


@dataclass(frozen=True, kw_only=True)
class CacheEntry(Event):
    """What is kept of one model at one commit (`--only list-cache`)."""

    kind: ClassVar[str] = "cache_entry"
    model_id: str = rule(TEXT, "hub id")
    commit: str = rule(TEXT, "the hub's commit")
    endpoint: str = rule(TEXT, "which hub it came from")
    path: str = rule(TEXT, "folder")
    layers: str = rule(TEXT, "layers that are here, as `0:12 20:30`")
    groups: tuple[str, ...] = rule(TEXTS, "what else is here: embedding, head, …", ())
    size_bytes: int = rule(NON_NEGATIVE, "bytes on disk, whole")
    partial_bytes: int = rule(NON_NEGATIVE, "bytes on disk of downloads that are not whole", 0)
    used_ms: float = rule(NON_NEGATIVE_NUMBER, "last use, milliseconds since the Unix epoch", 0.0)


@dataclass(frozen=True, kw_only=True)
class CacheVerified(Event):
    """A file of the cache was checked: by `--only verify-cache`, or found broken at a start."""

    kind: ClassVar[str] = "cache_verified"
    model_id: str = rule(TEXT, "hub id")
    commit: str = rule(TEXT, "the hub's commit")
    file: str = rule(TEXT, "file name")
    size_bytes: int = rule(NON_NEGATIVE, "its size")
    ok: bool = rule(FLAG, "whether every byte is what was fetched")
    reason: str | None = rule(TEXT, "one sentence, when it is not", None)


@dataclass(frozen=True, kw_only=True)
class CacheRemoved(Event):
    """What was kept of one model at one commit is gone (`--only remove-cache`)."""

    kind: ClassVar[str] = "cache_removed"
    model_id: str = rule(TEXT, "hub id")
    commit: str = rule(TEXT, "the hub's commit")
    bytes_freed: int = rule(NON_NEGATIVE, "bytes freed")
    kept: str | None = rule(TEXT, "why something was left, one sentence", None)


@dataclass(frozen=True, kw_only=True)
class MemoryCheck(Event):
    """What the stage needs against what is free, before anything is loaded."""

    kind: ClassVar[str] = "memory_check"
    device: str = rule(TEXT, "where it is needed")
    fits: bool = rule(FLAG, "whether need_bytes <= free_bytes")
    weights_bytes: int = rule(NON_NEGATIVE, "weights at the chosen quantization")
    kv_bytes: int = rule(NON_NEGATIVE, "KV cache at the maximum context")
    scratch_bytes: int = rule(NON_NEGATIVE, "activations and temporaries of loading")
    process_bytes: int = rule(NON_NEGATIVE, "the libraries themselves, not yet resident")
    need_bytes: int = rule(NON_NEGATIVE, "the sum")
    free_bytes: int = rule(NON_NEGATIVE, "free on the device and within the cgroup limit")
    limit: str = rule(TEXT, "what bounds free_bytes: memory, cgroup, device, or a given limit")


@dataclass(frozen=True, kw_only=True)
class LoadingModel(Event):
    """Loading begins."""

    kind: ClassVar[str] = "loading_model"
    model_id: str = rule(TEXT, "folder or hub id")
    model_type: str | None = rule(TEXT, "the architecture", None)
    layer_range: str = rule(TEXT, "`start:end`, half-open")
    quantization: str = rule(TEXT, "bfloat16, int8, nf4, int8-weight or int4-weight")


@dataclass(frozen=True, kw_only=True)
class ModelLoadBreakdown(Event):
    """Where the loading time went."""

    kind: ClassVar[str] = "model_load_breakdown"
    plan_ms: float = rule(NON_NEGATIVE_NUMBER, "config, headers, which tensors are needed")
    weights_ms: float = rule(NON_NEGATIVE_NUMBER, "reading, converting, quantizing")
    warmup_ms: float = rule(NON_NEGATIVE_NUMBER, "one forward before ready")
    tokenizer_ms: float = rule(NON_NEGATIVE_NUMBER, "tokenizer files, read beside the weights")
    num_tensors: int = rule(NON_NEGATIVE, "checkpoint tensors read")


@dataclass(frozen=True, kw_only=True)
class ModelLoaded(Event):
    """The stage's layers are in memory."""

    kind: ClassVar[str] = "model_loaded"
    elapsed_ms: float = rule(NON_NEGATIVE_NUMBER, "how long it took")
    weights_bytes: int = rule(NON_NEGATIVE, "bytes of the parameters and buffers held")
    rss_mb: float = rule(NON_NEGATIVE_NUMBER, "resident set size in MB (10^6)")
    peak_rss_mb: float = rule(NON_NEGATIVE_NUMBER, "highest resident set size so far")
    notes: tuple[str, ...] = rule(TEXTS, "what a user should know, one sentence each", ())


@dataclass(frozen=True, kw_only=True)
class ModelLoadFailed(Event):
    """Loading was given up; the process exits with 3 or 4."""

    kind: ClassVar[str] = "model_load_failed"
    error: str = rule(TEXT, "one sentence")
    error_type: str = rule(TEXT, "class of the error")
    traceback: str | None = rule(TEXT, "for an unexpected error", None)


@dataclass(frozen=True, kw_only=True)
class WorkerReady(Event):
    """Mirrors the ready line."""

    kind: ClassVar[str] = "pp_worker_ready"
    layer_range: str = rule(TEXT, "`start:end`, half-open")


@dataclass(frozen=True, kw_only=True)
class BootProfile(Event):
    """Milliseconds of each phase from process start to ready.

    A phase is named after what ended it: an event, or a part of loading.
    """

    kind: ClassVar[str] = "boot_profile"
    phases_ms: dict[str, float] = rule(OBJECT, "phase name to milliseconds")


@dataclass(frozen=True, kw_only=True)
class Op(Event):
    """One op was worked on."""

    kind: ClassVar[str] = "op"
    op: str = rule(TEXT, "op name")
    rid: RequestId = rule(REQUEST_ID, "the request_id", None)
    duration_ms: float = rule(
        NON_NEGATIVE_NUMBER, "from taking the line up to handing the reply on"
    )
    idle_ms_before: float = rule(NON_NEGATIVE_NUMBER, "how long the worker had nothing to do")
    first_call: bool = rule(FLAG, "whether it is the first of its kind here", False)
    ok: bool = rule(FLAG, "whether the reply is no error")
    code: str | None = rule(TEXT, "the error code", None)
    in_bytes: int = rule(NON_NEGATIVE, "length of the request line")
    out_bytes: int = rule(NON_NEGATIVE, "length of the reply line")
    seq_len: int | None = rule(
        NON_NEGATIVE, "rows worked on, per sequence; of `together`, of all its requests", None
    )
    requests: int | None = rule(NON_NEGATIVE, "of `together`: how many it carried", None)
    compute_ms: dict[str, float] | None = rule(
        OBJECT, "milliseconds per primitive: load, forward, sample, dump, …", None
    )


@dataclass(frozen=True, kw_only=True)
class OpTraceback(Event):
    """An op failed in a way nobody foresaw; the worker serves on."""

    kind: ClassVar[str] = "op_traceback"
    op: str = rule(TEXT, "op name")
    rid: RequestId = rule(REQUEST_ID, "the request_id", None)
    traceback: str = rule(TEXT, "python traceback")


@dataclass(frozen=True, kw_only=True)
class Heartbeat(Event):
    """The process is alive; sent every 30 s from its own thread, also during a long op."""

    kind: ClassVar[str] = "heartbeat"
    rss_mb: float = rule(NON_NEGATIVE_NUMBER, "resident set size in MB (10^6)")
    requests_served: int = rule(NON_NEGATIVE, "ops answered so far")
    kv_bytes: int | None = rule(NON_NEGATIVE, "bytes of all KV caches", None)
    sessions: int | None = rule(NON_NEGATIVE, "KV caches held", None)
    oom_kills: int | None = rule(
        NON_NEGATIVE, "processes that this host's kernel has killed for want of memory so far", None
    )


@dataclass(frozen=True, kw_only=True)
class SessionEvicted(Event):
    """A KV cache was freed because memory was short."""

    kind: ClassVar[str] = "session_evicted"
    rid: RequestId = rule(REQUEST_ID, "the request whose cache is gone", None)
    bytes_freed: int = rule(NON_NEGATIVE, "its size")


@dataclass(frozen=True, kw_only=True)
class SignalReceived(Event):
    """A signal asked the process to end; the op being worked on is answered first."""

    kind: ClassVar[str] = "signal_received"
    signal: str = rule(TEXT, "SIGTERM, SIGINT, SIGHUP")


@dataclass(frozen=True, kw_only=True)
class UncaughtException(Event):
    """The process ends with exit code 1."""

    kind: ClassVar[str] = "uncaught_exception"
    error: str = rule(TEXT, "message")
    error_type: str = rule(TEXT, "class of the error")
    traceback: str = rule(TEXT, "python traceback")


@dataclass(frozen=True, kw_only=True)
class Exiting(Event):
    """The last line."""

    kind: ClassVar[str] = "exiting"
    code: int = rule(INTEGER, "exit code")
    reason: str = rule(TEXT, "stdin_eof, shutdown, signal, load_failed, …")
    requests_served: int = rule(NON_NEGATIVE, "ops answered", 0)


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(Event):
    """An event of a kind this version does not know, or with fields it cannot read; kept whole."""

    kind: ClassVar[str] = ""
    fields: dict[str, Any] = field(default_factory=dict)


EVENTS: dict[str, type[Event]] = {
    event.kind: event
    for event in (
        Starting,
        Device,
        Importing,
        Imported,
        FetchingModel,
        CacheHit,
        CacheOrphanCleaned,
        DownloadProgress,
        DownloadFailed,
        ModelFetched,
        HostSurveyed,
        ModelSurveyed,
        CacheEntry,
        CacheVerified,
        CacheRemoved,
        MemoryCheck,
        LoadingModel,
        ModelLoadBreakdown,
        ModelLoaded,
        ModelLoadFailed,
        WorkerReady,
        BootProfile,
        Op,
        OpTraceback,
        Heartbeat,
        SessionEvicted,
        SignalReceived,
        UncaughtException,
        Exiting,
    )
}
