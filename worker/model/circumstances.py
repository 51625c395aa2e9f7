"""Tell what the results of trials depend on, beside what is tried."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from worker.config import library_environment
from worker.file_stamps import source_stamps, stamp
from worker.remembered import NOTHING, Remembered

_CPU_INFO = Path("/proc/cpuinfo")
_DECISIVE = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "microcode",
    "flags",
    "Features",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
)
# of transformers, beside the models' own files
_SHARED_FOLDERS = ("", "generation", "integrations", "quantizers", "utils")
_INSTALLED = (".dist-info", ".egg-info")
# Whose text is told by a version, or looked at; a model's own code may do anything.
_KNOWN = ("bitsandbytes", "torch", "transformers", "worker")


def here(remembered: Remembered) -> Remembered:
    """Return it for answers that depend on libraries, processor and threads of this process."""
    if remembered is NOTHING:
        return NOTHING
    try:
        return remembered.within(circumstances())
    except OSError:
        return NOTHING


def circumstances() -> list[Any]:
    """Return what may decide which ops a model runs, which kernels these are, and how they round.

    Raises:
        OSError: a file of this program or of transformers cannot be looked at, or the system does
            not tell which processor it has.
    """
    library, processor = Path(transformers.__file__).parent, list(_processor())
    if not processor:
        raise FileNotFoundError("it is not known which processor this is")
    return [
        _own_sources(),
        [sys.version, platform.platform(), platform.machine()],
        [torch.__version__, str(torch.version.git_version), torch.__config__.show()],
        [str(torch.get_num_threads()), torch.backends.cpu.get_cpu_capability()],
        [str(torch.get_default_dtype()), torch.get_float32_matmul_precision()],
        [torch.backends.mkldnn.is_available(), torch.are_deterministic_algorithms_enabled()],
        processor,
        library_environment(),
        sorted(_installed()),
        [source_stamps(library / name, within=False) for name in _SHARED_FOLDERS],
    ]


def model_circumstances(model: nn.Module) -> list[Any] | None:
    """Return what of a model decides its ops: its classes, their files, shapes and its config.

    None where that is not all, since the code of the model came with it.

    Raises:
        OSError: a file of a class cannot be looked at.
    """
    config: Any = model.config
    modules = [
        [name, type(module).__module__, type(module).__qualname__]
        for name, module in model.named_modules()
    ]
    homes = sorted({home for _, home, _ in modules})
    if not all(home.partition(".")[0] in _KNOWN and home in sys.modules for home in homes):
        return None
    # The text of this program counts already, and may lie somewhere else at each start.
    foreign = [home for home in homes if home.partition(".")[0] != "worker"]
    tensors = [
        [name, list(tensor.shape), list(tensor.stride()), str(tensor.dtype), str(tensor.device)]
        for named in (model.named_parameters, model.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    ]
    told = [repr(sorted(config.to_dict().items())), str(config._attn_implementation)]
    return [told, modules, tensors, [stamp(Path(str(sys.modules[h].__file__))) for h in foreign]]


def _own_sources() -> str:
    """Return the checksum of the text of this package; what is sent along has other times."""
    text = hashlib.sha256()
    paths = sorted(Path(__file__).parent.glob("*.py"))
    if not paths:
        raise FileNotFoundError("the text of this program is not in files")
    for path in paths:
        data = path.read_bytes()
        text.update(f"{path.name} {len(data)}\n".encode() + data)
    return text.hexdigest()


def _processor() -> Iterator[str]:
    """Give what the system tells of the first processor."""
    with suppress(OSError), _CPU_INFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if not name.strip():
                return
            if name.strip() in _DECISIVE:
                yield f"{name.strip()}={value.strip()}"


def _installed() -> Iterator[str]:
    """Give the packages that can be imported, with their versions, by their folders."""
    for folder in sys.path:
        with suppress(OSError), os.scandir(folder or ".") as entries:
            yield from (entry.name for entry in entries if entry.name.endswith(_INSTALLED))
