"""Load a whole model with plain transformers, run one token, say `ready`, and wait for the end.

Usage: ``python -m tools.bench.whole_model MODEL_ID THREADS``: what `fetch_and_load` compares with.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar


def main() -> None:
    """Load as a user would, and do what a worker does before it says that it is ready."""
    model_id, threads = sys.argv[1:]
    disable_progress_bar()
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(model_id, dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        model(torch.zeros(1, 1, dtype=torch.long))
    print('{"status": "ready"}', flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
