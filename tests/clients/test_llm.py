"""The `llm` command: what it prints is what the stages compute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import stub_answer
from tests.support.real_clients import client_package, words
from tests.support.serving import served

client_package("llm")

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

MODELS = """\
- model_id: {name}
  model_name: stub
  api_base: {url}/v1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return its folder; there is one model, `served`."""
    folder = tmp_path_factory.mktemp("llm")
    with served() as server:
        text = MODELS.format(name="served", url=server.url)
        (folder / "extra-openai-models.yaml").write_text(text)
        yield folder


def llm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "unused"}
    return subprocess.run(
        [sys.executable, "-m", "llm", *words],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=110,
    )


def test_a_prompt_and_the_conversation_that_goes_on(folder: Path) -> None:
    first = stub_answer("a b c", 2, 6)
    asked = ("-m", "served", "-o", "max_tokens", "6")
    whole = llm(folder, *asked, "--no-stream", "a b c")
    assert (whole.returncode, whole.stdout) == (0, words(first) + "\n"), whole.stderr
    goes_on = llm(folder, *asked, "-c", "d")
    second = stub_answer(f"a b c {words(first)} d", 2, 6)
    assert (goes_on.returncode, goes_on.stdout) == (0, words(second) + "\n"), goes_on.stderr


def test_a_refusal_is_told_in_the_words_of_the_server(folder: Path) -> None:
    refused = llm(folder, "-m", "served", "-o", "max_tokens", "0", "a")
    assert (refused.returncode != 0, "max_tokens" in refused.stderr) == (True, True)
