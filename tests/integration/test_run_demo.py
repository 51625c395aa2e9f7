"""`orchestrator run` with a real model over workers says what plain transformers says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import ROOT, run_cli, start_cli
from tests.support.oracle import Oracle, Question
from tests.support.sshd import running_sshd, sshd_binary

pytestmark = [pytest.mark.demo_model, pytest.mark.slow, pytest.mark.timeout(300)]

SYSTEM = "Answer in one short sentence."
CHAT = "What is the capital of France?"
RAW = "Copy this line exactly.\n🦙 日本 é 🦙 日本 é 🦙 日本 é\n🦙 日本 é 🦙 日本"
NUM_NEW = 16


@pytest.fixture(scope="module")
def oracle(demo_model_path: Path) -> Iterator[Oracle]:
    """Plain transformers, computing beside the workers."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": CHAT}]
    questions = [
        Question(messages=messages, max_new_tokens=NUM_NEW),
        Question(prompt=RAW, max_new_tokens=NUM_NEW),
    ]
    process = Oracle(demo_model_path, questions, 256)
    yield process
    process.close()


def test_a_raw_completion_streams_whole_characters(
    demo_model_path: Path, oracle: Oracle, tmp_path: Path
) -> None:
    with start_cli(
        *("run", "--local", "2", "--model-id", str(demo_model_path), "--bundle-dir", str(tmp_path)),
        *("--raw", "--prompt", RAW, "--max-new-tokens", str(NUM_NEW)),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        # Each read returns what has come so far; half a character would not decode.
        pieces = [piece.decode("utf-8") for piece in iter(lambda: process.stdout.read(4096), b"")]
        summary = process.stderr.read().decode().splitlines()[-1]
    expected = oracle.answers()[1]
    assert (process.returncode, "".join(pieces)) == (0, expected.text)
    assert len(pieces) > 1 and f"{len(expected.tokens)} new tokens" in summary


@pytest.mark.sshd
@pytest.mark.skipif(
    sshd_binary() is None and not os.environ.get("CI"), reason="no OpenSSH server here"
)
def test_a_chat_answer_here_and_on_an_ssh_host_is_that_of_transformers(
    demo_model_path: Path, oracle: Oracle, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts.txt"
    (tmp_path / "sshd").mkdir()
    with running_sshd(tmp_path / "sshd") as server:
        hosts.write_text(
            "local layers=0:12\n"
            f"{server.user}@127.0.0.1:{server.port} python={sys.executable} layers=12:30 "
            f"env.PYTHONPATH={ROOT} env.OMP_NUM_THREADS=1\n"
        )
        done = run_cli(
            *("run", "--hosts", str(hosts), "--model-id", str(demo_model_path), "--json"),
            *("--bundle-dir", str(tmp_path / "bundles"), "--ssh-command", server.client()),
            *("--system", SYSTEM, "--prompt", CHAT, "--max-new-tokens", str(NUM_NEW)),
            timeout_s=200,
        )
    expected = oracle.answers()[0]
    got = json.loads(done.stdout)
    assert (done.returncode, got["text"], got["token_ids"]) == (0, expected.text, expected.tokens)
    assert got["usage"] == {
        "prompt_tokens": len(expected.prompt_tokens),
        "completion_tokens": len(expected.tokens),
        "total_tokens": len(expected.prompt_tokens) + len(expected.tokens),
    }
    assert got["finish_reason"] == ("length" if len(expected.tokens) == NUM_NEW else "stop")
    assert [stage["layer_range"] for stage in got["stages"]] == [[0, 12], [12, 30]]
