"""Collect the end-of-sequence tokens from every place that may name one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedTokenizerBase

# An answer no template or tokenizer has a special meaning for.
_ANSWER = "stageline answer"


def eos_token_ids(
    folder: Path,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase | None,
) -> tuple[int, ...]:
    """Return the union of every source, sorted.

    Sources: `generation_config.json` in `folder`, the config (that of the text decoder too),
    the tokenizer, and the token by which the chat template ends an assistant's turn.
    """
    found: set[int] = set()
    found.update(_ids(_generation_config(folder).get("eos_token_id")))
    for one in (config, config.get_text_config(decoder=True)):
        found.update(_ids(getattr(one, "eos_token_id", None)))
    if tokenizer is not None:
        found.update(_ids(tokenizer.eos_token_id))
        found.update(_ids(end_of_turn_id(tokenizer)))
    return tuple(sorted(found))


def end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the added token that the chat template writes after an assistant's last answer.

    None where there is no template, or where it ends a turn with plain text.
    """
    if not tokenizer.chat_template:
        return None
    messages = [
        {"role": "user", "content": "stageline question"},
        {"role": "assistant", "content": _ANSWER},
    ]
    try:
        chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    except Exception:  # noqa: BLE001 - a template that refuses this chat names no end of turn
        return None
    after = str(chat).rpartition(_ANSWER)[2].lstrip()
    added = tokenizer.get_added_vocab()
    # longest first: one marker may begin with another
    for text in sorted(added, key=len, reverse=True):
        if text.strip() and after.startswith(text):
            return int(added[text])
    return None


def _generation_config(folder: Path) -> dict[str, Any]:
    try:
        fields = json.loads((folder / "generation_config.json").read_bytes())
    except (OSError, ValueError):
        return {}  # it is optional, and `generate` too goes on without it
    return fields if isinstance(fields, dict) else {}


def _ids(value: object) -> Iterable[int]:
    """Return the ids of an `eos_token_id` value: absent, one id, or a list of ids."""
    values = value if isinstance(value, list | tuple) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
