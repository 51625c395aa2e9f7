"""The diagnosis names stage, host, phase and cause of runs that were really broken."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.faults.kinds import made, names
from tests.support.faults.record import RECORDED
from tests.support.faults.truth import HEALTHY, TRUTH
from tests.support.faults.verdict import Verdict, judge

# About a second each, made together; no privilege is needed. Of the other kinds there are recorded
# bundles.
LIVE = {
    "the program": (
        "python_missing",
        "python_not_allowed",
        "old_python",
        "bashrc_exits",
        "much_login_noise",
        "other_protocol",
    ),
    "the start": (
        "load_memory_error",
        "load_defect",
        "prompt_refused",
        "clock_off",
        "bundle_cut",
        "bundle_of_the_future",
    ),
    "the end of a process": (
        "killed_by_someone",
        "terminated_by_someone",
        "broken_heap",
        "segfault",
        "bus_error",
        "exits_with_7",
    ),
    "a process that lives": (
        "line_on_stdout",
        "wrong_answer",
        "stuck_op",
        "stopped_worker",
        "context_full",
        "op_defect",
    ),
    "the orchestrator": ("orchestrator_killed", "ctrl_c", "recovered_crash"),
    "health": (
        "one_stage",
        "two_stages",
        "sampled",
        "one_token",
        "eight_stages",
        "json_answer",
        "a_little_login_noise",
    ),
}
AT_ONCE = 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("about", LIVE)
def test_runs_just_broken_are_explained(about: str, tmp_path: Path) -> None:
    def one(name: str) -> Verdict:
        with made(name, tmp_path / name) as bundle:
            return judge(name, bundle)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(one, LIVE[about]))
    assert [verdict for verdict in verdicts if verdict.misses] == []


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDED.iterdir()))
def test_a_recorded_run_is_explained(name: str) -> None:
    verdict = judge(name, RECORDED / name)
    assert verdict.misses == (), verdict


def test_every_kind_is_run_or_recorded() -> None:
    recorded = {path.name for path in RECORDED.iterdir()}
    live = {name for group in LIVE.values() for name in group}
    assert live | recorded == set(names())
    assert not live & recorded
    assert (len(TRUTH) >= 25, len(HEALTHY) >= 10) == (True, True)
