"""`orchestrator bench` as a user sees it, with stub workers: tables, JSON, page, exit codes."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.integration.test_ssh import needs_sshd
from tests.support.cli import ROOT, run_cli, start_cli
from tests.support.sshd import running_sshd

QUICK = ("--stub", "--rounds", "2", "--prompt-tokens", "12", "--new-tokens", "4")


def test_one_object_tells_everything_and_the_page_is_written(tmp_path: Path) -> None:
    page, bundles = tmp_path / "page.html", tmp_path / "bundles"
    words = ("--local", "2", "--streams", "1,3", "--json")
    done = run_cli("bench", *QUICK, *words, "--html", str(page), "--bundle-dir", str(bundles))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["prompt_tokens"], told["new_tokens"], told["rounds"]) == (12, 4, 2)
    assert [stage["layers"] for stage in told["stages"]] == [[0, 64], [64, 128]]
    assert [level["streams"] for level in told["levels"]] == [1, 3]
    figures = [told["alone"]["decode_tokens_per_s"], told["stages"][0]["compute_ms"]]
    assert all(len(figure["values"]) == 2 and figure["low"] > 0 for figure in figures)
    assert "<circle" in page.read_text("utf-8")
    (bundle,) = bundles.iterdir()
    # The one before, then 1 and 3 in each of two rounds.
    assert len((bundle / "requests.jsonl").read_text().splitlines()) == 1 + 2 * (1 + 3)
    assert json.loads((bundle / "end.json").read_text())["exit_code"] == 0


def test_guessing_is_measured_beside_the_same_answers_without() -> None:
    words = ("--local", "2", "--streams", "1", "--speculate", "ngram", "--json", "--no-bundle")
    done = run_cli("bench", *QUICK, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["speculation"]
    assert (told["kind"], told["draft_model"], told["same_tokens"]) == ("ngram", None, True)
    assert [text["text"] for text in told["texts"]] == ["quote", "story"]
    assert all(len(text["ratio"]["values"]) == 2 for text in told["texts"])


@pytest.mark.sshd
@needs_sshd[1]
def test_a_host_over_ssh_is_measured_like_any_other(tmp_path: Path) -> None:
    with running_sshd(tmp_path) as server:
        hosts = tmp_path / "hosts.txt"
        hosts.write_text(
            f"local\n{server.user}@127.0.0.1:{server.port} python={sys.executable} "
            f"env.PYTHONPATH={ROOT}\n"
        )
        done = run_cli(
            *("bench", *QUICK, "--hosts", str(hosts), "--streams", "1", "--no-bundle"),
            *("--ssh-command", server.client()),
        )
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert [row.split()[0] for row in rows if "64:128" in row] == ["1"]
    assert "Several requests at once" not in done.stdout


def test_a_signal_ends_it_in_order(tmp_path: Path) -> None:
    bundles = tmp_path / "bundles"
    words = ("--stub", "--local", "2", "--new-tokens", "1000000", "--bundle-dir", str(bundles))
    process = start_cli("bench", *words)
    assert process.stderr is not None and process.stdout is not None
    seen = b""
    while seen.count(b": ready") < 2:
        byte = process.stderr.read(1)
        assert byte, seen
        seen += byte
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert b"interrupted by SIGINT" in err
    (bundle,) = bundles.iterdir()
    assert json.loads((bundle / "end.json").read_text())["exit_code"] == 130
