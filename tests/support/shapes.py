"""Checkpoints that exist by name and size alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from worker.weights.header import TensorEntry
from worker.weights.index import CheckpointIndex

_TENSORS_A_FILE = 600


def deepseek_v3_index(config: DeepseekV3Config) -> CheckpointIndex:
    """Return the index of a bfloat16 checkpoint of this config, one tensor for each expert.

    Beside what the model uses there are scales of each matrix and a layer that predicts further
    tokens, as in the published checkpoint; no file is there.
    """
    names = dict(_stored_shapes(config))
    extra = {f"{name}_scale_inv": (1,) for name in names if "_proj" in name}
    further = f"model.layers.{config.num_hidden_layers}"
    extra |= {f"{further}.{name}.weight": (config.hidden_size,) for name in ("enorm", "hnorm")}
    files: dict[str, str] = {}
    headers: dict[str, dict[str, TensorEntry]] = {}
    for i, (name, shape) in enumerate(sorted((names | extra).items())):
        file = files[name] = f"model-{i // _TENSORS_A_FILE + 1:05}-of-99999.safetensors"
        size_bytes = 2 * math.prod(shape)
        headers.setdefault(file, {})[name] = TensorEntry(name, file, "BF16", shape, 0, size_bytes)

    def place(entry: TensorEntry) -> Path:
        raise AssertionError(f"{entry.name} was asked for; there are only names and sizes")

    def header(file: str) -> Mapping[str, TensorEntry]:
        return headers[file]

    return CheckpointIndex(files, header, place)


def _stored_shapes(config: DeepseekV3Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    with torch.device("meta"):
        shapes = {n: tuple(t.shape) for n, t in DeepseekV3ForCausalLM(config).state_dict().items()}
    for name, shape in shapes.items():
        stem = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        if stem == name or not stem.endswith("experts."):
            yield name, shape
            continue
        num_experts, rows, columns = shape
        for i in range(num_experts):
            if name.endswith("down_proj"):
                yield f"{stem}{i}.down_proj.weight", (rows, columns)
            else:
                yield f"{stem}{i}.gate_proj.weight", (rows // 2, columns)
                yield f"{stem}{i}.up_proj.weight", (rows // 2, columns)
