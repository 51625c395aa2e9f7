"""The benches run, and what they say of bytes and memory holds at any size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.hub import serve_hub
from tests.support.tiny import tiny_checkpoint
from tools.bench.fetch_and_load import FetchBench, Outcome
from tools.bench.fetch_and_load import report as fetch_report
from tools.bench.listing_hub import ListingHub, write_pages
from tools.bench.load_speed import LoadBench
from tools.bench.load_speed import report as load_report
from tools.bench.replay import ReplayBench
from tools.bench.replay import report as replay_report
from tools.bench.rounds import in_turn
from worker.protocol.stage import StageSlice

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("bench"), "llama", sharded=True)


def test_load_speed_measures_each_way_in_each_round(folder: Path) -> None:
    bench = LoadBench(folder, StageSlice(0, 6, 6), torch.get_num_threads())
    ways = bench.ways()
    found = in_turn(ways, 2)
    assert {name: len(samples) for name, samples in found.items()} == dict.fromkeys(ways, 2)
    assert all(sample.elapsed_s > 0 for samples in found.values() for sample in samples)
    assert len(load_report(found, bench.size_bytes).splitlines()) == 1 + len(ways)


def test_a_cache_is_brought_back_with_the_same_bits_each_way(folder: Path) -> None:
    bench = ReplayBench(folder, tokens=21, threads=torch.get_num_threads())
    found = in_turn(bench.ways(), 1)
    assert replay_report(found, 21).splitlines()[-1] == "all give the same bits"


def test_a_stage_that_is_the_whole_model_fetches_no_more_than_transformers(
    folder: Path, tmp_path: Path
) -> None:
    write_pages(folder, "bench/model", tmp_path)
    with serve_hub(ListingHub({"bench/model": folder}, pages=tmp_path)) as hub:
        bench = FetchBench(hub, tmp_path, stages=1, threads=1, again=False)
        found = in_turn({"stages": bench.stages, "whole": bench.whole}, 1)
    (stage,), (whole,) = found.values()
    assert 0 < stage.served_bytes <= whole.served_bytes
    assert min(stage.peak_bytes, whole.peak_bytes) > 0
    assert not any(tmp_path.glob("host*"))


def test_ratios_are_those_of_the_medians() -> None:
    split = [Outcome(n, 1.0, 100, 0, 50, 60) for n in (1.0, 2.0, 9.0)]
    whole = [Outcome(n, 2.0, 100, 0, 100, 120) for n in (3.0, 4.0, 5.0)]
    *_, last = fetch_report({"split": split, "whole": whole}).splitlines()
    assert last.split() == ["ratio", "0.50", "0.50", "1.000", "0.50", "0.500"]
