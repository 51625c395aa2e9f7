"""`bundle show` tells what is known of every run, fits a page and has one JSON form."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.bundle.command import add_parser
from orchestrator.bundle.reader import read_bundle
from orchestrator.bundle.report import report_json, report_of
from orchestrator.bundle.screen import PlainScreen, RichScreen, Table
from orchestrator.bundle.show import show
from orchestrator.bundle.timings import OpTiming, Spread
from tests.support.bundles import CASES, RECORDED, Run, finished


def text_of(path: Path) -> str:
    stream = io.StringIO()
    show(report_of(read_bundle(path)), PlainScreen(stream))
    return stream.getvalue()


def call(*words: str, folder: Path) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(), folder)
    args = parser.parse_args(["bundle", "show", *words])
    return int(args.handler(args, ()))


def test_the_times_of_an_op_are_computing_wire_and_idle() -> None:
    report = report_of(read_bundle(RECORDED / "finished"))
    nothing = Spread(0, None, 0.0)
    assert report.ops == (
        OpTiming(0, "embed_and_forward", 1, 0, spread(5), spread(2), nothing, 100, 200),
        OpTiming(0, "decode_step", 2, 0, spread(5, 5), spread(2, 2), spread(9, 9), 200, 400),
        OpTiming(
            1,
            "forward_and_sample",
            3,
            0,
            spread(5, 5, 5),
            spread(4, 4, 4),
            spread(11, 11),
            300,
            600,
        ),
    )


def spread(*values: float) -> Spread:
    return Spread(len(values), values[0], sum(values), values[-1])


def test_the_start_is_told_in_the_time_of_the_run() -> None:
    start = report_of(read_bundle(RECORDED / "finished")).starts[1]
    assert (start.hello_ms, start.ready_ms) == (111, 2011)
    assert start.loading_ms == {"plan": 60, "weights": 800, "warm-up": 90, "tokenizer": 10}
    assert [(phase.name, phase.start_ms, phase.took_ms) for phase in start.phases] == [
        ("start the process", 11, 100),
        ("import torch", 111, 900),
        ("fetch", 1011, 40),
        ("load", 1051, 960),
    ]


def test_the_whole_page_of_a_run_that_went_well() -> None:
    text = text_of(RECORDED / "finished").partition("\n")[2]
    assert text == (RECORDED.parent / "bundle_show_finished.txt").read_text()


@pytest.mark.parametrize("name", CASES)
def test_every_bundle_fits_100_columns_and_has_its_json(name: str) -> None:
    report = report_of(read_bundle(RECORDED / name))
    rows = [line for line in text_of(RECORDED / name).splitlines() if "  " in line.strip()]
    assert max(map(len, rows)) <= 100
    values = json.loads(report_json(report))
    assert [finding["rule"] for finding in values["findings"]] == [
        finding.rule for finding in report.findings
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_terminal_shows_the_same_words(name: str) -> None:
    stream = io.StringIO()
    report = report_of(read_bundle(RECORDED / name))
    show(report, RichScreen(Console(file=stream, width=200, force_terminal=False)))
    assert stream.getvalue().split() == text_of(RECORDED / name).split()


def test_foreign_text_cannot_steer_the_terminal(tmp_path: Path) -> None:
    run = Run(tmp_path / "b", command=("orchestrator", "\x1b]0;owned\x07", "[red]"))
    run.fail(0, "crashed", "\x1b[31m ended \x00\ud800")
    run.close(5)
    text = text_of(tmp_path / "b")
    assert "\x1b" not in text
    assert "stage 0 on alpha [31m ended" in text


def test_a_folder_of_bundles_shows_its_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("20270101T000000Z-aaaa", "20270102T000000Z-aaaa"):
        finished(Run(tmp_path / name))
    assert call("--json", folder=tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(tmp_path / "20270102T000000Z-aaaa")


def test_what_is_no_bundle_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(str(tmp_path), folder=tmp_path) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} is no bundle and holds none; "
        "give the path that a run printed at its end\n"
    )


def test_nothing_that_a_terminal_would_obey_is_printed() -> None:
    stream, text = io.StringIO(), "host \x1b[31m\u202e\r"
    for screen in (PlainScreen(stream), RichScreen(Console(file=stream))):
        screen.line(text)
        screen.table(Table(("host",), ((text,),)))
    assert "[31m" in stream.getvalue()
    assert not set("\x1b\u202e\r") & set(stream.getvalue())
