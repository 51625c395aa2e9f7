"""Secret names are told from innocent ones."""

from __future__ import annotations

import time

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
    "StrictHostKeyChecking",
    "HostKeyAlgorithms",
    "PasswordAuthentication",
]


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_name_is_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", INNOCENT)
def test_an_innocent_name_is_left_alone(name: str) -> None:
    assert not is_secret_name(name)


def test_a_short_value_is_not_masked_everywhere() -> None:
    assert Masker(["abc"]).text("abc token=x a=abc") == "abc token=*** a=abc"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("not of the form key=value; put each", "not of the form key=value; put each"),
        ("-o StrictHostKeyChecking=yes -i key", "-o StrictHostKeyChecking=yes -i key"),
        ("auth=no, token='yes'; key=abc; api_key=value1", None),
    ],
)
def test_only_a_secret_is_masked(text: str, masked: str | None) -> None:
    expected = "auth=no, token=***; key=***; api_key=***"
    assert Masker().text(text) == (masked or expected)


def test_an_authorization_header_is_masked() -> None:
    assert Masker().raw(b"got Bearer abcdefgh.ijkl=, sorry") == b"got ***, sorry"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (b"GET http://me:s3cret@hub:80/x failed", b"GET http://me:***@hub:80/x failed"),
        (b'{"url":"https://me:a@b@hub/x?y=a@b"}', b'{"url":"https://me:***@hub/x?y=a@b"}'),
        (b"ssh://me@hub:22 and http://hub:80/a@b", b"ssh://me@hub:22 and http://hub:80/a@b"),
    ],
)
def test_the_password_of_an_address_is_masked(text: bytes, masked: bytes) -> None:
    assert Masker().raw(text) == masked


def test_a_quoted_secret_is_masked_as_it_is_meant_too() -> None:
    assert Masker(["plain%40text"]).text("plain%40text plain@text") == "*** ***"


@pytest.mark.parametrize("word", ["A", "a_", "x1.", "ab/+"])
def test_a_long_word_takes_no_longer_than_its_length(word: str) -> None:
    text = word * 100_000
    begun_s = time.monotonic()
    assert (Masker().text(text), time.monotonic() - begun_s < 10) == (text, True)
