"""End tokens are the union of every source (T10)."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import LlamaConfig

from tests.support.tokenizers import CHATML, SPECIAL, byte_tokenizer
from worker.model.eos import end_of_turn_id, eos_token_ids

END = SPECIAL.index("<|end|>")


def test_the_union_of_generation_config_config_tokenizer_and_template(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [40, 41]}))
    tokenizer = byte_tokenizer(chat_template=CHATML)
    found = eos_token_ids(tmp_path, LlamaConfig(eos_token_id=42), tokenizer)
    assert found == tuple(sorted({40, 41, 42, SPECIAL.index("</s>"), END}))


def test_every_source_may_be_absent(tmp_path: Path) -> None:
    assert eos_token_ids(tmp_path, LlamaConfig(eos_token_id=None), None) == ()
    (tmp_path / "generation_config.json").write_text("{broken")
    assert eos_token_ids(tmp_path, LlamaConfig(eos_token_id=[5, 3]), None) == (3, 5)


def test_the_end_of_turn_is_what_follows_the_last_answer() -> None:
    spaced = CHATML.replace("<|end|>", "\n<|end|>\n")
    assert end_of_turn_id(byte_tokenizer(chat_template=CHATML)) == END
    assert end_of_turn_id(byte_tokenizer(chat_template=spaced)) == END


def test_a_template_without_an_end_of_turn_names_none() -> None:
    plain = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    refusing = "{{ raise_exception('no chat today') }}"
    assert end_of_turn_id(byte_tokenizer()) is None
    assert end_of_turn_id(byte_tokenizer(chat_template=plain)) is None
    assert end_of_turn_id(byte_tokenizer(chat_template=refusing)) is None
