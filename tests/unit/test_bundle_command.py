"""`orchestrator bundle`: each action takes a bundle, a folder of them or an archive."""

from __future__ import annotations

import argparse
import html
import json
import shlex
import stat
from pathlib import Path

import pytest

from orchestrator.bundle.command import add_parser
from tests.support import page_bundles
from tests.support.bundles import RECORDED


def call(*words: str, folder: Path = RECORDED) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(), folder)
    args = parser.parse_args(["bundle", *words])
    return int(args.handler(args, ()))


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    path = tmp_path / "20270101T000000Z-aaaa"
    page_bundles.crashed(path)
    return path


def test_the_diagnosis_says_cause_place_evidence_and_advice(
    crashed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("diagnose", str(crashed)) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    cause = lines[lines.index("First cause") + 1 :]
    assert cause[0] == "  stage 1 on gpu2.lan was killed by SIGKILL in decode"
    assert cause[1].startswith("    stage 1, host gpu2.lan, phase ")
    assert {line.split(": ")[0].strip() for line in cause[2:-1]} >= {
        "exits.jsonl:1",
        "failures.jsonl:1",
        "stderr/stage-1.log:2",
    }
    assert cause[-1].startswith("  What to do: ")


def test_the_diagnosis_as_json_is_that_of_show(
    crashed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("show", "--json", str(crashed)) == 0
    shown = json.loads(capsys.readouterr().out)
    assert call("diagnose", "--json", str(crashed)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "path": str(crashed),
        "exit_code": 5,
        "has_end": True,
        "cause": shown["findings"][0],
        "findings": shown["findings"],
        "problems": [],
    }


def test_a_run_that_went_well_is_said_to_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diagnose", str(RECORDED / "finished")) == 0
    assert capsys.readouterr().out.endswith("\nNo fault was found\n")


def test_the_command_of_the_run_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("/opt/bin/orchestrator", "run", "--ssh-command", "ssh -F 'my config'")
    page_bundles.WideRun(tmp_path / "b", ("gpu1",), words).close(10, 0)
    assert call("diagnose", str(tmp_path / "b")) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == (
        """orchestrator run --ssh-command 'ssh -F '"'"'my config'"'"''""".split()
    )
    assert call("report", "-o", str(tmp_path / "b.html"), str(tmp_path / "b")) == 0
    page = html.unescape((tmp_path / "b.html").read_text("utf-8"))
    assert f"orchestrator {shlex.join(words[1:])}</p>" in page


def test_show_tells_of_lost_stages_that_came_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page_bundles.recovered(tmp_path / "b")
    assert call("show", str(tmp_path / "b")) == 0
    text = capsys.readouterr().out
    section = text[text.index("Lost stages brought back") :].splitlines()
    assert [line.split() for line in section] == [
        "Lost stages brought back".split(),
        "st host try restart replay requests tokens result".split(),
        "1 gpu2.lan 1 of 3 700 ms - 0 0 gpu2.lan refused the connection".split(),
        "1 gpu2.lan -> gpu9.lan 2 of 3 1.44 s 90 ms 1 52 serves again".split(),
    ]
    assert [line.split()[-1] for line in text.splitlines() if "bfloat16" in line][:3] == [
        "ready",
        "recovered",
        "ready",
    ]


def test_files_are_named_after_the_bundle_and_are_the_users_alone(
    crashed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(crashed.parent)
    folder = crashed.parent
    assert [call(action, folder=folder) for action in ("report", "trace", "pack")] == [0, 0, 0]
    names = [f"20270101T000000Z-aaaa{end}" for end in (".html", ".trace.json", ".tar.gz")]
    assert capsys.readouterr().out.split() == names
    assert {stat.S_IMODE(Path(name).stat().st_mode) for name in names} == {0o600}


def test_an_archive_is_shown_like_a_bundle(
    crashed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = crashed.parent / "sent.zip"
    assert call("pack", "--hide-hosts", "-o", str(target), str(crashed)) == 0
    assert "replaced: " in capsys.readouterr().err
    for action in ("diagnose", "show"):
        assert call(action, str(target)) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"Bundle {target}\n")
        assert "stage 1 on host2 was killed by SIGKILL in decode" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("diagnose", "nowhere"), "nowhere is no bundle and holds none"),
        (("report", "-o", "no/such/x.html", str(RECORDED / "hung")), "No such file or directory"),
        (("pack", "-o", "there.zip", str(RECORDED / "hung")), "there.zip exists"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_2(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.zip").write_text("mine")
    assert call(*words) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n"), said in told.err) == ("", 1, True)
    assert told.err.startswith("error: ")
