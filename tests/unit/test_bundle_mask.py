"""Secret names are told from innocent ones."""

from __future__ import annotations

import pytest

from orchestrator.bundle.mask import Masker, is_secret_name

SECRET = ["HF_TOKEN", "token", "--hf-token", "apiKey", "OPENAI_API_KEY", "db.password", "authToken"]
INNOCENT = [
    "max_new_tokens",
    "token_id",
    "token_ids",
    "prompt_tokens",
    "keyboard",
    "monkey",
    "key_file",
]


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_name_is_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", INNOCENT)
def test_an_innocent_name_is_left_alone(name: str) -> None:
    assert not is_secret_name(name)


def test_a_short_value_is_not_masked_everywhere() -> None:
    assert Masker(["abc"]).text("abc token=x a=abc") == "abc token=*** a=abc"


def test_an_authorization_header_is_masked() -> None:
    assert Masker().raw(b"got Bearer abcdefgh.ijkl=, sorry") == b"got ***, sorry"
