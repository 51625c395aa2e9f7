"""What a worker is asked to be: command line and environment -> one frozen `WorkerConfig`.

The only file of the package that reads the environment. An option on the command line beats the
environment variable of the same name.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.failures import LoadFailed, UsageError
from worker.options import as_count, as_engine, as_flag, as_positive, as_seconds, parser
from worker.protocol.exits import ExitCode
from worker.protocol.roles import StageIdentity
from worker.protocol.stage import StageSlice, split_layers

# What the names of variables begin with that libraries read by themselves.
_LIBRARIES = (
    *("ATEN", "BLIS", "DNNL", "GOMP", "KMP", "LD_LIBRARY_PATH", "LD_PRELOAD", "MKL", "OMP"),
    *("ONEDNN", "OPENBLAS", "PYTORCH", "TORCH", "TRANSFORMERS", "USE_"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything a worker was told, checked as far as it can be without the model.

    Attributes:
        model_id: a local folder or a hub id; None only for a stub.
        stage, num_stages: which even share of the layers; both or neither.
        shard_start, shard_end: an explicit half-open range in their place; both or neither.
        engine: `fast`; `stock` for torch's kernels and the model's own forward alone; `graphs` for
            decode steps as CUDA graphs.
        threads: compute threads on a CPU; None leaves torch's choice.
        max_context: positions a request may use; None is the model's own limit.
        await_environment: whether the op `environment` comes before anything else.
        lease_s: seconds without any line from the orchestrator after which the worker ends.
        memory_limit_bytes: memory the stage may use, below what the device has.
        kv_budget_bytes: bytes that all KV caches together may hold; None leaves it to the backend.
        only: the one errand to do in place of serving, or None.
        cache_dir: the folder that keeps fetched weights; None is `$HF_HOME/stageline`.
        whole_files: fetch whole weight files in place of the ranges that the slice needs.
        repair: with the errand verify-cache, remove what is broken.
    """

    model_id: str | None = None
    revision: str | None = None
    stage: int | None = None
    num_stages: int | None = None
    shard_start: int | None = None
    shard_end: int | None = None
    quantization: str = "bfloat16"
    engine: str = "fast"
    device: str = "auto"
    threads: int | None = None
    max_context: int | None = None
    stub: bool = False
    nonce: str | None = None
    await_environment: bool = False
    lease_s: float | None = None
    heartbeat_s: float = 30.0
    memory_limit_bytes: int | None = None
    prefill_chunk: int = 256
    max_sessions: int = 64
    kv_budget_bytes: int | None = None
    mmap: bool = True
    trust_remote_code: bool = False
    download_progress_s: float = 10.0
    only: str | None = None
    cache_dir: Path | None = None
    fetch_connections: int = 4
    whole_files: bool = False
    repair: bool = False

    @property
    def has_owner(self) -> bool:
        """Whether a program started this worker and wants it gone when it is gone itself."""
        return self.nonce is not None or self.lease_s is not None

    def identity(self, num_layers: int) -> StageIdentity:
        """Return which layers of a model this worker holds.

        Raises:
            LoadFailed: the range does not lie within the model, or there are more stages than
                layers; exit code 2.
        """
        try:
            if self.shard_start is not None and self.shard_end is not None:
                return StageIdentity(StageSlice(self.shard_start, self.shard_end, num_layers))
            assert self.stage is not None and self.num_stages is not None
            own = split_layers(num_layers, self.num_stages)[self.stage]
            return StageIdentity(own, self.stage, self.num_stages)
        except ValueError as error:
            raise LoadFailed(str(error), ExitCode.USAGE) from None


def read_config(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> WorkerConfig:
    """Build the config from the command line and the environment (this process's by default).

    Raises:
        UsageError: one sentence that names what is wrong and what to give.
        SystemExit: for --help and --version.
    """
    options = vars(parser().parse_args(argv))
    env = os.environ if environ is None else environ
    for name, variable, convert in (
        ("model_id", "MODEL", str),
        ("stage", "STAGE", as_count),
        ("num_stages", "NUM_STAGES", as_positive),
        ("stub", "PP_WORKER_STUB", as_flag),
        ("cache_dir", "STAGELINE_CACHE", Path),
        ("engine", "STAGELINE_ENGINE", as_engine),
        ("download_progress_s", "PP_DOWNLOAD_PROGRESS_INTERVAL_SECS", as_seconds),
    ):
        options[name] = _or_env(options[name], env.get(variable, ""), variable, convert)
    given = {name: value for name, value in options.items() if value is not None}
    only = given.get("only")
    if only in (None, "fetch"):
        _check_slice(given, env)
    config = WorkerConfig(**given)
    if only is not None and config.stub:
        raise UsageError(f"--only {only} and --stub are both given: a stub has no model or weights")
    if config.repair and only != "verify-cache":
        raise UsageError("--repair is given without --only verify-cache: give both")
    if not config.model_id and not config.stub and only in (None, "fetch"):
        raise UsageError("no model: give --model-id FOLDER_OR_HUB_ID (or MODEL), or --stub")
    return config


def _check_slice(given: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Refuse a slice that is missing, half given, given twice or impossible."""
    by_stage = [name for name in ("stage", "num_stages") if name in given]
    by_shard = [name for name in ("shard_start", "shard_end") if name in given]
    if by_stage and by_shard:
        raise UsageError(
            f"{_named(by_stage[0], env)} and {_named(by_shard[0], env)} are both given: choose "
            "the layers either by --stage/--num-stages (STAGE, NUM_STAGES) or by "
            "--shard-start/--shard-end"
        )
    if len(by_stage) == 1 or len(by_shard) == 1:
        (name,) = by_stage or by_shard
        other = {
            "stage": "--num-stages (or NUM_STAGES)",
            "num_stages": "--stage (or STAGE)",
            "shard_start": "--shard-end",
            "shard_end": "--shard-start",
        }[name]
        raise UsageError(f"{_named(name, env)} is given without {other}: give both")
    if not by_stage and not by_shard:
        raise UsageError(
            "no layers chosen: give STAGE and NUM_STAGES (or --stage/--num-stages), "
            "or --shard-start/--shard-end"
        )
    if by_stage and given["stage"] >= given["num_stages"]:
        raise UsageError(
            f"stage {given['stage']} of {given['num_stages']} stages does not exist: "
            f"give a stage from 0 to {given['num_stages'] - 1}"
        )
    if by_shard and given["shard_start"] >= given["shard_end"]:
        raise UsageError(
            f"layers {given['shard_start']}:{given['shard_end']} are no range: --shard-start must "
            "be below --shard-end, which is not included"
        )


def _named(name: str, env: Mapping[str, str]) -> str:
    """Name an option the way it was given, as far as that can be told."""
    variable = {"stage": "STAGE", "num_stages": "NUM_STAGES"}.get(name)
    option = f"--{name.replace('_', '-')}"
    return f"{variable}={env[variable]} (or {option})" if variable and env.get(variable) else option


def _or_env(value: Any, text: str, variable: str, convert: Callable[[str], Any]) -> Any:
    if value is not None or not text:
        return value
    try:
        return convert(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"environment variable {variable}: {error}") from None


def adopt_environment(
    variables: Mapping[str, str], environ: MutableMapping[str, str] | None = None
) -> None:
    """Set variables that came over stdin; what is imported from here on reads them.

    The kernel shows other processes the environment that this one was started with, so these are
    not seen there.
    """
    (os.environ if environ is None else environ).update(variables)


def library_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that torch, its kernels and transformers may go by."""
    found = os.environ if environ is None else environ
    return {name: value for name, value in sorted(found.items()) if name.startswith(_LIBRARIES)}


def wait_passively(environ: MutableMapping[str, str] | None = None) -> None:
    """Have OpenMP threads sleep while they wait, unless the environment says otherwise.

    To be called before torch is imported. Threads that spin, the default, starve each other
    where workers or other programs share the processors: beside one busy program a decode step
    of a 135M model took 967 ms, and 54 ms with threads that sleep.
    """
    (os.environ if environ is None else environ).setdefault("OMP_WAIT_POLICY", "passive")
