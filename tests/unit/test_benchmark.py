"""The figures of a bench follow from the moments that were seen; its tables and plots from them."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from orchestrator.benchmark.figure import Figure
from orchestrator.benchmark.guess_result import GuessedText, GuessResult
from orchestrator.benchmark.guessed import guessed_text
from orchestrator.benchmark.options import BenchOptions, add_options, read_options, read_streams
from orchestrator.benchmark.page import page_of
from orchestrator.benchmark.plot import HEIGHT, stage_bars, throughput
from orchestrator.benchmark.result import BenchResult, FirstRequest, StageResult
from orchestrator.benchmark.rounds import LevelSample
from orchestrator.benchmark.stream import StreamSample
from orchestrator.benchmark.summary import level_result
from orchestrator.benchmark.tables import guess_rows, level_rows, show_result, stage_row
from orchestrator.benchmark.tap import Tap, TimedOp
from orchestrator.benchmark.texts import TEXTS
from orchestrator.benchmark.token_time import StageTime, alone_sample, busy_shares
from orchestrator.bundle.records import NoRecorder, OpRecord
from orchestrator.bundle.screen import Table
from orchestrator.token_source import Guesses
from worker.protocol.codec import encode_event
from worker.protocol.events import Envelope, Op


def stream(*token_ms: float, begun_ms: float = 0.0, prompt_tokens: int = 8) -> StreamSample:
    return StreamSample(prompt_tokens, begun_ms, token_ms, tuple(range(len(token_ms))))


def stage_result(stage: int = 0, **changes: object) -> StageResult:
    values: dict[str, object] = {
        "stage": stage,
        "host": "<b>node</b>",
        "layers": (0, 2),
        "device": "cpu",
        "threads": "1",
        "compute_ms": Figure.of([8.0, 10.0, 12.0]),
        "wire_ms": Figure.of([1.0]),
        "idle_ms": Figure.of([9.0]),
        "read_bytes": 100_000_000,
        "memory_gbps": 12.5,
    }
    return StageResult(**{**values, **changes})  # type: ignore[arg-type]


def result(*streams: int) -> BenchResult:
    one = LevelSample((stream(10, 20, 30),), (0.5, 0.25))
    return BenchResult(
        model="m",
        model_type="llama",
        quantization="bfloat16",
        versions={"stageline": "1"},
        started="2026-01-01",
        prompt_tokens=8,
        new_tokens=3,
        rounds=1,
        ready_ms=1500,
        first=FirstRequest(ttft_ms=100, tokens_per_s=3),
        ttft_ms=Figure.of([10.0]),
        prefill_tokens_per_s=Figure.of([800.0]),
        decode_tokens_per_s=Figure.of([100.0]),
        token_ms=Figure.of([10.0]),
        stages=(stage_result(0), stage_result(1, read_bytes=None)),
        levels=tuple(level_result(count, [one, one]) for count in streams),
    )


class Lines:
    """A Screen that keeps what is printed."""

    width = None

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tables: list[Table] = []

    def heading(self, text: str) -> None:
        self.lines.append(text)

    def line(self, text: str, style: str = "") -> None:
        self.lines.append(text)

    def whole(self, text: str) -> None:
        self.lines.append(text)

    def table(self, table: Table) -> None:
        self.tables.append(table)


def test_a_request_is_measured_by_the_moments_of_its_tokens() -> None:
    sample = stream(110, 120, 150, begun_ms=10)
    found = (sample.ttft_ms, sample.decode_ms, sample.decode_tokens_per_s, sample.longest_gap_ms)
    assert found == (100, 40, 50, 30)


def test_the_tokens_of_requests_at_once_count_from_the_first_begin_to_the_last_end() -> None:
    sample = LevelSample((stream(100, 500), stream(600, 1010, begun_ms=10)), (1.0,))
    assert sample.tokens_per_s == pytest.approx(4 / 1.01)
    level = level_result(2, [sample])
    assert level.ttft_ms.values == (345,)
    assert level.longest_gap_ms.values == (410,)


def test_a_tokens_time_is_compute_and_wire_and_idle_on_each_stage() -> None:
    # 8 tokens in chunks of 4: two ops of the prompt on each stage, then two of decoding.
    sent = [0, 10, 20, 30, 50, 60, 70, 80]
    ops = [TimedOp(index % 2, at, 8, 6) for index, at in enumerate(sent)]
    sample = alone_sample(stream(40, 70, 100), ops, num_stages=2, prefill_chunk=4)
    assert sample.prefill_ms == 38
    assert sample.prefill_tokens_per_s == pytest.approx(8 / 0.038)
    assert sample.stages == (StageTime(6, 2, 22), StageTime(6, 2, 22))


def test_a_stage_that_is_the_whole_model_has_two_ops_for_each_chunk_and_token() -> None:
    # As above: each chunk has its layers and its choice, then so has each token.
    ops = [TimedOp(0, at, 4, 3) for at in (0, 5, 10, 15, 40, 45, 70, 75)]
    sample = alone_sample(stream(20, 50, 80), ops, num_stages=1, prefill_chunk=4)
    assert (sample.prefill_ms, sample.stages) == (19, (StageTime(6, 2, 22),))


def test_a_stage_is_busy_while_it_computes() -> None:
    ops = [TimedOp(0, 0, 9, 5), TimedOp(1, 10, 9, None), TimedOp(0, 20, 9, 5)]
    assert busy_shares(ops, 0, 40, 2) == (0.25, 0.0)


@pytest.mark.parametrize("event_first", [True, False])
def test_an_op_gets_the_time_that_its_worker_tells_whichever_comes_first(
    event_first: bool,
) -> None:
    tap = Tap(NoRecorder())
    envelope = Envelope(stage=0, wall_ms=1, uptime_ms=1)

    def tell() -> None:
        for duration_ms in (3.0, 4.0):
            event = Op(
                op="decode_step",
                rid="r",
                duration_ms=duration_ms,
                idle_ms_before=0,
                ok=True,
                in_bytes=1,
                out_bytes=1,
            )
            tap.line(0, "h", encode_event(event, envelope), 1)

    def record() -> None:
        for name, sent_ms in (("decode_step", 10.0), ("detokenize", 11.0), ("decode_step", 20.0)):
            tap.op(
                OpRecord(
                    stage=0,
                    host="h",
                    op=name,
                    rid="r",
                    wall_ms=sent_ms,
                    duration_ms=6,
                    sent_bytes=1,
                    received_bytes=1,
                    ok=True,
                )
            )

    for act in (tell, record) if event_first else (record, tell):
        act()
    found = [(op.sent_ms, op.waited_ms, op.compute_ms) for op in tap.between(0, 100)]
    assert found == [(10.0, 6, 3.0), (20.0, 6, 4.0)]


def test_a_figure_is_told_with_its_spread_where_there_is_one() -> None:
    assert Figure.of([3.0, 1.0, 2.0]).words() == "2.0 (1.0-3.0)"
    assert Figure.of([2.0]).words(2) == "2.00"


def test_the_share_of_the_memory_is_what_is_read_while_computing() -> None:
    assert stage_result().bandwidth_share == pytest.approx(0.8)
    assert stage_row(stage_result())[-3:] == ("100 MB", "10.0", "80% of 12.5")
    assert stage_row(stage_result(read_bytes=None))[-3:] == ("-", "-", "-")


def test_the_tables_have_a_row_for_each_stage_and_number_of_requests() -> None:
    screen = Lines()
    show_result(result(1, 4), screen)
    assert [len(table.rows) for table in screen.tables] == [4, 2, 2]
    assert all(len(row) == len(t.headings) for t in screen.tables for row in t.rows)
    assert (
        "not in them: one request before, first token after 100 ms, 3.0 tokens/s"
        in (screen.lines[1])
    )
    assert level_rows(result(1, 4))[1][:3] == ("4", "100.0 (100.0-100.0)", "1.00")


def test_a_plot_has_a_point_for_each_number_of_requests_and_a_bar_for_each_stage() -> None:
    line = throughput(result(1, 4))
    assert [point.label for point in line.points] == ["1", "4"]
    assert [tick for tick in line.ticks if tick[1] in ("0", "100")] == [(HEIGHT, "0"), (0, "100")]
    bars = stage_bars(result(1))
    assert [part.width for part in bars[0].parts] == [50, 5, 45]


def test_the_page_loads_nothing_and_nothing_foreign_becomes_markup() -> None:
    text = page_of(result(1, 4))
    assert "<b>node" not in text
    assert "&lt;b&gt;node" in text
    assert not any(word in text for word in ("<script", "http://", "https://", "<img", "<link"))
    assert text.count("<circle") == 2


def read(*words: str) -> BenchOptions:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return read_options(parser, parser.parse_args(["--local=1", *words]))


def guessed(name: str, *, new_ids: tuple[int, ...] = (0, 1, 2)) -> GuessedText:
    text = next(text for text in TEXTS if text.name == name)
    plain = [stream(0, 100, 200), stream(0, 200, 400)]
    quick = [
        StreamSample(8, 0, (0, 50, 100), new_ids, Guesses(drafted, accepted))
        for drafted, accepted in ((4, 3), (6, 2))
    ]
    return guessed_text(text, stream(0, 400, 800), plain, quick)


def test_guesses_are_compared_round_by_round_and_token_by_token() -> None:
    text = guessed("quote")
    found = (text.ratio.values, text.guessed_tokens, text.accepted_share, text.same_tokens)
    assert found == ((2, 4), 10, 0.5, True)
    assert text.first_tokens_per_s == 2.5
    other = GuessResult(draft_model=None, texts=(text, guessed("story", new_ids=(0, 1, 3))))
    assert (other.same_tokens, other.to_json()["same_tokens"]) == (False, False)
    assert [row[-1] for row in guess_rows(other)] == ["the same", "DIFFERENT"]


def test_guesses_are_told_in_the_tables_and_drawn_on_the_page() -> None:
    told = replace(
        result(1), guesses=GuessResult(draft_model="<i>small</i>", texts=(guessed("quote"),))
    )
    screen = Lines()
    show_result(told, screen)
    assert screen.tables[-1].rows[0][:4] == (
        *("quote", "7.5 (5.0-10.0)", "20.0 (20.0-20.0)", "3.00 (2.00-4.00)"),
    )
    assert "by <i>small</i>" in screen.lines[-2]
    page = page_of(told)
    assert "&lt;i&gt;small" in page
    assert 'width="37.5%"' in page  # 7.5 of 20 tokens/s


def test_one_request_alone_is_always_measured() -> None:
    assert read("--stub", "--streams=8,2,8").streams == (1, 2, 8)


@pytest.mark.parametrize("text", ["", "0", "1,,2", "two", "65"])
def test_other_numbers_of_requests_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        read_streams(text)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give --model-id (a folder or a hub id), or --stub"),
        (("--stub", "--new-tokens=1"), "--new-tokens 1 has nothing after the first; give 2 or mo"),
        (("--stub", "--speculate=draft"), "--speculate draft needs --draft-model-id"),
        (("--stub", "--html=/no/such/p.html"), "/no/such/p.html: there is no folder /no/such"),
        (("--stub", "--html=/tmp"), "--html /tmp is a folder; name a file to write"),
    ],
)
def test_what_could_only_fail_later_is_refused_at_once(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        read(*words)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err
