"""Run lm-eval's command on the task beside this file: its own Hugging Face backend, then a server.

`python run_two.py MODEL_FOLDER SERVED_NAME COMPLETIONS_URL OUTPUT_FOLDER`; one process, as both
need the same heavy imports. What it writes lies in OUTPUT_FOLDER/hf, /hf-long and /served.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

HERE = Path(__file__).parent


@register_model("hf-long")
class LongHfLm(HFLM):
    """The same backend with one more token behind each text, as a server is sent them.

    It changes no logit before it but by rounding: kernels for bfloat16 depend on the length.
    """

    def _model_call(self, inps: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return super()._model_call(torch.cat((inps, inps[:, -1:]), 1), **more)[:, :-1]


def evaluate(output: Path, backend: str, **model_args: object) -> None:
    sys.argv = ["lm_eval", "run", "--tasks", "stageline_facts", "--include_path", str(HERE)]
    sys.argv += ["--model", backend, "--device", "cpu", "--batch_size", "1", "--log_samples"]
    sys.argv += ["--model_args", ",".join(f"{name}={value}" for name, value in model_args.items())]
    sys.argv += ["--output_path", str(output)]
    cli_evaluate()


def main(folder: str, name: str, url: str, output: str) -> None:
    plain = {"pretrained": folder, "dtype": "bfloat16", "softmax_dtype": "float32"}
    for backend in ("hf", "hf-long"):
        evaluate(Path(output, backend), backend, **plain, logits_cache=False)
    served = {"model": name, "base_url": url, "tokenizer_backend": "huggingface"}
    evaluate(Path(output, "served"), "local-completions", **served, tokenizer=folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
