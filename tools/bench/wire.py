"""Measure the encodings of hidden states: how much smaller, how fast, and what they change.

    python -m tools.bench.wire [--folder MODEL] [--text FILE] [--tokens 768] [--rounds 5]

The rows are those between the layers of a real model that reads the first tokens of a text, at the
cuts of 8 even stages. `smaller` is bytes of bf16 by bytes of the encoding. KL divergence from the
logits without an encoding (mean over the positions, nats), and the share of positions whose
likeliest token stays, are of the whole text with every cut of 2, 4 or 8 stages encoded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from tools.bench.rounds import in_turn, spread
from tools.demo_model import default_dir, demo_model
from worker.backends.transformers.row_int8 import RowInt8
from worker.byte_planes import BytePlanes
from worker.protocol.encodings import Encoding
from worker.protocol.payload import Coding

_ROOT = Path(__file__).resolve().parents[2]
_STAGES = (2, 4, 8)
_ROWS = (1, 64, 256)
_MOST_REPEATS = 200
Through = Callable[[torch.Tensor], torch.Tensor]


class Text:
    """A model that reads a text, with what it hands from layer to layer in our hands."""

    def __init__(self, folder: Path, text: Path, tokens: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self._ids = tokenizer(text.read_text(), return_tensors="pt").input_ids[:, :tokens]
        self.num_tokens = int(self._ids.shape[1])

    @torch.inference_mode()
    def log_probs(self, stages: int, through: Through) -> torch.Tensor:
        """Return log probabilities `[tokens, vocabulary]`, each cut's rows gone `through`."""
        layers = self._model.model.layers
        cuts = [i * len(layers) // stages for i in range(1, stages)]
        hooks = [
            layers[cut].register_forward_pre_hook(lambda _, args: (through(args[0]), *args[1:]))
            for cut in cuts
        ]
        try:
            logits = self._model(self._ids, use_cache=False).logits
        finally:
            for hook in hooks:
                hook.remove()
        return torch.log_softmax(logits[0].float(), -1)


def through(coding: Coding) -> Through:
    """Return what a link with the coding makes of rows `[1, tokens, width]`."""

    def coded(rows: torch.Tensor) -> torch.Tensor:
        data, width = as_bytes(rows), rows.shape[-1]
        back = coding.decode(coding.encode(data, width), len(data), width)
        return torch.frombuffer(bytearray(back), dtype=torch.bfloat16).reshape(rows.shape)

    return coded


def as_bytes(rows: torch.Tensor) -> bytes:
    """Return rows as they are on the wire."""
    data: bytes = rows.contiguous().view(torch.uint8).numpy().tobytes()
    return data


def rate(work: Callable[[], object], size_bytes: int) -> float:
    """Return MB/s of bf16 of one piece of work, which is repeated where it is short."""
    begun_s, done = perf_counter(), 0
    while done < _MOST_REPEATS and perf_counter() - begun_s < 0.2:
        work()
        done += 1
    return size_bytes * done / (perf_counter() - begun_s) / 1e6


def sizes(cuts: list[torch.Tensor], codings: dict[Encoding, Coding], rounds: int) -> None:
    """Print how much smaller rows get, and how fast."""
    print("| encoding | rows | smaller, over the cuts | encode, MB/s | decode, MB/s |")
    print("|---|---|---|---|---|")
    for name, coding in codings.items():
        for count in _ROWS:
            rows = [cut[0, -count:] for cut in cuts]
            width = rows[0].shape[-1]
            plain = [as_bytes(one) for one in rows]
            packed = [coding.encode(one, width) for one in plain]
            smaller = [len(a) / len(b) for a, b in zip(plain, packed, strict=True)]
            one, coded, size = plain[len(plain) // 2], packed[len(plain) // 2], len(plain[0])
            ways = {
                "encode": lambda: rate(lambda: coding.encode(one, width), size),  # noqa: B023
                "decode": lambda: rate(lambda: coding.decode(coded, size, width), size),  # noqa: B023
            }
            took = in_turn(ways, rounds)
            speeds = " | ".join(spread(took[way], 0) for way in ("encode", "decode"))
            print(f"| {name} | {count} | {spread(smaller, 3)} | {speeds} |")


def changes(text: Text, codings: dict[Encoding, Coding]) -> None:
    """Print what the encodings change."""
    print("| encoding | stages | KL, nats | same likeliest token |")
    print("|---|---|---|---|")
    exact = text.log_probs(1, lambda rows: rows)
    for name, coding in codings.items():
        for stages in _STAGES:
            found = text.log_probs(stages, through(coding))
            kl = (exact.exp() * (exact - found)).sum(-1).mean().item()
            same = (exact.argmax(-1) == found.argmax(-1)).float().mean().item()
            print(f"| {name} | {stages} | {abs(kl):.5f} | {same:.1%} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--text", type=Path, default=_ROOT / "docs" / "bundle.md")
    parser.add_argument("--tokens", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(1)
    text = Text(options.folder or demo_model(default_dir()), options.text, options.tokens)
    codings: dict[Encoding, Coding] = {
        Encoding.BF16_PLANES_ZSTD: BytePlanes(),
        Encoding.INT8_ROW_TOP8: RowInt8(),
    }
    cuts: list[torch.Tensor] = []

    def keep(rows: torch.Tensor) -> torch.Tensor:
        cuts.append(rows.clone())
        return rows

    text.log_probs(max(_STAGES), keep)
    largest = median(float(cut.abs().max()) for cut in cuts)
    print(f"{text.num_tokens} tokens, width {cuts[0].shape[-1]}, largest element {largest:g}\n")
    sizes(cuts, codings, options.rounds)
    print()
    changes(text, codings)


if __name__ == "__main__":
    main()
