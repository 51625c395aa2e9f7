"""What docs/clients.md shows works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import ROOT, stub_answer
from tests.support.real_clients import client_package, installed_npm_client, words
from tests.support.serving import Server, served

for name in ("openai", "langchain_openai", "llm"):
    client_package(name)

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

QUESTION, AGAIN, TOKENS = "Why is the sky blue?", "Say it in one word.", 60
FIRST = words(stub_answer(QUESTION, 2, TOKENS))
SECOND = words(stub_answer(f"{QUESTION} {FIRST} {AGAIN}", 2, TOKENS))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served("--served-model-name", "MODEL") as running:
        yield running


def pieces(server: Server, language: str) -> list[str]:
    """Return the pieces of code in a language, for this server."""
    page = (ROOT / "docs" / "clients.md").read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [piece.replace("http://127.0.0.1:8000", server.url) for piece in found]


def output_of(folder: Path, *command: str) -> str:
    """Return what a program prints that is run in a folder."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    more = {"PATH": programs, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "unused"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_shown_in_python(server: Server, tmp_path: Path) -> None:
    printed = [
        output_of(tmp_path, sys.executable, "-c", piece) for piece in pieces(server, "python")
    ]
    assert printed == [FIRST, FIRST]


def test_what_is_shown_in_javascript(server: Server, tmp_path: Path) -> None:
    installed_npm_client(tmp_path)
    (piece,) = pieces(server, "js")
    (tmp_path / "shown.mjs").write_text(piece)
    assert output_of(tmp_path, "node", "shown.mjs") == FIRST


def test_what_is_shown_for_llm(server: Server, tmp_path: Path) -> None:
    (models,), (commands,) = pieces(server, "yaml"), pieces(server, "sh")
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    assert output_of(tmp_path, "sh", "-ec", commands) == f"{FIRST}\n{SECOND}\n"
