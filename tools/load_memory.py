"""Measure the memory of loading and running stages, against what was predicted.

    python tools/load_memory.py [--only smollm2|llama|moe] [--quantization nf4 ...]

Each row is a fresh process: it imports the libraries, plans and predicts, loads the stage while
a thread samples VmRSS of /proc/self/status each 2 ms, warms up, and fills a KV cache to the
maximum context. Prints, in MiB:

fixed      resident when libraries are imported and the stage is planned, before weights are read
weights    bytes of the stage's weights, predicted; they equal what is held to the byte or nearly
load peak  highest VmRSS while loading
bound      weights + 10 % + fixed; `holds` says whether the load peak stays below
predicted  fixed + what the memory check predicts is needed
peak       highest VmRSS at all: load, warm-up, prefill to the maximum context
error      predicted against peak, in percent
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.memory_probe import Case, Measured, measure  # noqa: E402 - found through ROOT

_MIB = 1 << 20


def llama_1b(folder: Path) -> int:
    """Write random weights of Llama-3.2-1B's shape, 2.3 GiB; return the number of layers."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    return _write(config, folder)


def llama_1_1b(folder: Path) -> int:
    """Write random weights of TinyLlama-1.1B's shape, 2.1 GiB; return the number of layers."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        tie_word_embeddings=False,
        max_position_embeddings=2048,
    )
    return _write(config, folder)


def qwen3_moe(folder: Path) -> int:
    """Write a small mixture of experts, one tensor for each expert; return its layers."""
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        moe_intermediate_size=384,
        num_hidden_layers=24,
        num_attention_heads=12,
        num_key_value_heads=4,
        num_experts=16,
        num_experts_per_tok=4,
        max_position_embeddings=8192,
    )
    return _write(config, folder)


def _write(config: object, folder: Path) -> int:
    import torch
    from transformers import AutoModelForCausalLM

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)
    model = model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.02)
            if "norm" in name:
                parameter.fill_(1.0)
    model.tie_weights()
    model.save_pretrained(folder, max_shard_size="500MB")
    return int(model.config.num_hidden_layers)


def cases(name: str, folder: Path, layers: int, quantizations: list[str]) -> list[Case]:
    """List the measurements of one model: first, middle and last part, each quantization."""
    third = layers // 3
    found: list[Case] = []
    for start, end in ((0, third), (third, layers - third), (layers - third, layers)):
        for quantization in quantizations:
            case = Case(name, str(folder), start, end, layers, quantization)
            found.append(case)
            if quantization == "bfloat16":
                found.append(Case(name, str(folder), start, end, layers, mmap=False))
    return found


_HEAD = (
    "model    layers  quantized  read   fixed weights (held) loaded   load peak  bound holds"
    "    kv scratch  predicted   peak  error"
)


def row(case: Case, m: Measured) -> str:
    """Format one measurement."""
    read = "mmap" if case.mmap and case.quantization == "bfloat16" else "copy"
    holds = "yes" if m.load_peak_bytes <= m.load_bound_bytes else "no"
    layers = f"{case.shard_start}:{case.shard_end}"
    return (
        f"{case.model:8} {layers:7} {case.quantization:9} {read:5} {_mib(m.fixed_bytes):6} "
        f"{_mib(m.predicted_weights_bytes):7} {_mib(m.held_weights_bytes):6} "
        f"{_mib(m.loaded_bytes):6} {_mib(m.load_peak_bytes):11} {_mib(m.load_bound_bytes):6} "
        f"{holds:5} {_mib(m.kv_bytes):5} {_mib(m.predicted_scratch_bytes):7} "
        f"{_mib(m.predicted_bytes):10} {_mib(m.peak_bytes):6} {m.error:+6.1%}"
    )


def _mib(size_bytes: int) -> str:
    return str(round(size_bytes / _MIB))


def main() -> int:
    """Print the table; 1 when a bound or the 15 % is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("smollm2", "llama", "moe"), action="append")
    parser.add_argument("--quantization", choices=("bfloat16", "int8", "nf4"), action="append")
    options = parser.parse_args()
    quantizations = options.quantization or ["bfloat16", "int8", "nf4"]
    wanted = options.only or ["smollm2", "llama", "moe"]
    failed = False
    print(_HEAD)
    with tempfile.TemporaryDirectory(prefix="stageline-memory-") as folder:
        for name in wanted:
            path, layers = _model(name, Path(folder) / name)
            for case in cases(name, path, layers, quantizations):
                measured = measure(case)
                print(row(case, measured), flush=True)
                over = measured.load_peak_bytes > measured.load_bound_bytes
                failed |= abs(measured.error) > 0.15 or (over and case.quantization == "bfloat16")
            if path.is_relative_to(folder):
                shutil.rmtree(path)
    return int(failed)


def _model(name: str, folder: Path) -> tuple[Path, int]:
    if name == "smollm2":
        from tools.demo_model import default_dir, demo_model

        return demo_model(default_dir()), 30
    return folder, (llama_1b if name == "llama" else qwen3_moe)(folder)


if __name__ == "__main__":
    sys.exit(main())
