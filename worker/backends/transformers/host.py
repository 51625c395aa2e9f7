"""See what this host has to offer: device, memory, speed, disk, weights that are here."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil
import torch
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from worker.backends.transformers.device import choose_device, describe_device
from worker.config import WorkerConfig
from worker.model.bandwidth import measure_read_speed
from worker.model.limits import free_memory
from worker.protocol.events import HostSurveyed
from worker.weights.disk import free_bytes
from worker.weights.group import group_of
from worker.weights.location import cache_root
from worker.weights.repo import find_local
from worker.weights.store import Store, endpoint_name, repo_name

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# What a process takes of a CUDA device before its first tensor; not measured here, the context of
# recent drivers takes 300 to 600 MiB.
_CUDA_CONTEXT_BYTES = 512 << 20


def survey_host(config: WorkerConfig) -> HostSurveyed:
    """Return what the host has to offer, with the libraries of a worker loaded.

    Raises:
        LoadFailed: the device that `config` names is not there; exit code 2.
    """
    device = choose_device(config.device)
    described = describe_device(device)
    free = free_memory(device, config.memory_limit_bytes)
    resident_bytes = _resident_bytes(device)
    root = cache_root(config.cache_dir)
    speed = measure_read_speed(device, free.free_bytes)
    return HostSurveyed(
        host=os.uname().nodename,
        machine=machine_id(),
        device=device,
        device_name=described.name,
        devices=_devices(),
        threads=described.threads or 0,
        free_bytes=free.free_bytes,
        total_bytes=described.total_bytes or 0,
        limit=free.limit,
        resident_bytes=resident_bytes,
        read_gbps=speed.linear_gbps,
        memory_gbps=speed.memory_gbps,
        disk_free_bytes=free_bytes(root),
        cache_path=str(root),
        cached_groups=cached_groups(root, config.model_id),
        cached_files=cached_files(Path(constants.HF_HUB_CACHE), config.model_id),
    )


def machine_id(boot_id: Path = _BOOT_ID) -> str:
    """Name the machine whose memory this process shares; containers on it give the same."""
    try:
        return boot_id.read_text().strip()
    except OSError:
        return platform.node()  # not Linux


def cached_groups(root: Path, model_id: str | None) -> dict[str, list[str]]:
    """Return the groups of a hub model's tensors in our own cache, by commit."""
    repo_id = _repo_id(model_id)
    if repo_id is None:
        return {}
    found: dict[str, list[str]] = {}
    for folder in sorted((root / endpoint_name(constants.ENDPOINT) / repo_name(repo_id)).glob("*")):
        store = Store.at(folder, constants.ENDPOINT, repo_id, folder.name)
        groups = {group_of(name) for part in store.parts for name in part.entries}
        if groups:
            found[folder.name] = sorted(groups)
    return found


def cached_files(hub_cache: Path, model_id: str | None) -> dict[str, list[str]]:
    """Return the weight files that huggingface_hub has downloaded of a model, by commit."""
    repo_id = _repo_id(model_id)
    if repo_id is None:
        return {}
    folder = hub_cache / repo_folder_name(repo_id=repo_id, repo_type="model") / "snapshots"
    found: dict[str, list[str]] = {}
    for snapshot in sorted(folder.glob("*")):
        files = sorted(path.name for path in snapshot.glob("*.safetensors") if path.is_file())
        if files:
            found[snapshot.name] = files
    return found


def _repo_id(model_id: str | None) -> str | None:
    if model_id is None or find_local(model_id, None) is not None:
        return None
    return model_id.partition("@")[0]


def _devices() -> tuple[str, ...]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = ("mps",) if torch.backends.mps.is_available() else ()
    return ("cpu", *(f"cuda:{index}" for index in range(count)), *mps)


def _resident_bytes(device: str) -> int:
    if device.startswith("cuda"):
        return _CUDA_CONTEXT_BYTES
    return int(psutil.Process().memory_info().rss)
