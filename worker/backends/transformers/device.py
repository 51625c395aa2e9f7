"""Choose the device that computes, and describe it."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil
import torch

from worker.failures import LoadFailed
from worker.protocol.events import Device
from worker.protocol.exits import ExitCode


def choose_device(wanted: str) -> str:
    """Return `cpu`, `mps` or `cuda:N`; `auto` takes a GPU where there is one.

    Raises:
        LoadFailed: the wanted device is not there; exit code 2.
    """
    num_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if wanted == "auto":
        return "cuda:0" if num_cuda else "mps" if has_mps else "cpu"
    if wanted.startswith("cuda"):
        index = int(wanted.partition(":")[2] or 0)
        if index >= num_cuda:
            raise LoadFailed(
                f"--device {wanted} is not there: this machine has {num_cuda} usable CUDA devices "
                f"(torch {torch.__version__}); give --device cpu, or install a CUDA build of torch",
                ExitCode.USAGE,
            )
        return f"cuda:{index}"
    if wanted == "mps" and not has_mps:
        raise LoadFailed(
            "--device mps is not there: this machine has no Metal device; give --device cpu",
            ExitCode.USAGE,
        )
    return wanted


def check_engine(engine: str, device: str) -> None:
    """Refuse an engine that the device cannot run.

    Raises:
        LoadFailed: CUDA graphs on a device without CUDA; exit code 2.
    """
    if engine == "graphs" and not device.startswith("cuda"):
        raise LoadFailed(
            f"--engine graphs needs a CUDA device, and this worker computes on {device}; give "
            "--device cuda, or leave --engine graphs away",
            ExitCode.USAGE,
        )


def describe_device(device: str) -> Device:
    """Return the event about the chosen device."""
    if device.startswith("cuda"):
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        return Device(device=device, name=name, free_bytes=free_bytes, total_bytes=total_bytes)
    memory = psutil.virtual_memory()
    return Device(
        device=device,
        name=_processor_name(),
        threads=torch.get_num_threads() if device == "cpu" else None,
        free_bytes=memory.available,
        total_bytes=memory.total,
    )


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
