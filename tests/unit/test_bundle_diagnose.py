"""The diagnosis names the first cause, rests on evidence, and tells symptoms apart."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.bundle.cause import Cause
from orchestrator.bundle.diagnose import RULES, diagnose
from orchestrator.bundle.findings import Finding
from orchestrator.bundle.manifest import EndRecord
from orchestrator.bundle.reader import Kept, read_bundle
from orchestrator.bundle.records import OpRecord, RecoveryRecord
from tests.support.bundles import CASES, RECORDED

# name -> of each finding: rule, rank, stage, where the evidence is
EXPECTED: dict[str, list[tuple[str, str, int | None, tuple[str, ...]]]] = {
    "finished": [],
    "killed_worker": [("killed", "CAUSE", 1, ("exits.jsonl:1", "failures.jsonl:1"))],
    "killed_for_memory": [("killed", "CAUSE", 1, ("exits.jsonl:1", "events.jsonl:10"))],
    "killed_remote_neighbour": [
        ("killed", "CAUSE", 1, ("exits.jsonl:2", "stderr/stage-1.log:1")),
        ("peer_gone", "SYMPTOM", 0, ("exits.jsonl:1",)),
    ],
    "hung": [("hung", "CAUSE", 1, ("failures.jsonl:1",))],
    "load_failed": [
        (
            "load_failed",
            "CAUSE",
            1,
            ("events.jsonl:11", "failures.jsonl:1", "events.jsonl:12", "exits.jsonl:1"),
        )
    ],
    "memory_refused": [
        (
            "memory_refused",
            "CAUSE",
            0,
            (
                "events.jsonl:6",
                "events.jsonl:7",
                "failures.jsonl:1",
                "events.jsonl:7",
                "exits.jsonl:1",
            ),
        )
    ],
    "download_failed": [
        ("download_failed", "CAUSE", 1, ("events.jsonl:6", "events.jsonl:7", "exits.jsonl:1"))
    ],
    "uncaught": [("uncaught", "CAUSE", 0, ("events.jsonl:25", "exits.jsonl:1"))],
    "unreachable": [
        (
            "host_unreachable",
            "CAUSE",
            1,
            ("failures.jsonl:1", "stderr/stage-1.log:1", "exits.jsonl:1"),
        )
    ],
    "spawn_failed": [("spawn_failed", "CAUSE", 0, ("failures.jsonl:1", "exits.jsonl:1"))],
    "version_mismatch": [("version_mismatch", "CAUSE", 1, ("events.jsonl:3", "failures.jsonl:1"))],
    "garbage": [("protocol_violation", "CAUSE", 0, ("failures.jsonl:1", "events.jsonl:25"))],
    "never_ready": [("not_ready", "CAUSE", 0, ("failures.jsonl:1", "events.jsonl:3"))],
    "crashed": [
        (
            "crashed",
            "CAUSE",
            0,
            (
                "exits.jsonl:1",
                "stderr/stage-0.log:2",
                "stderr/stage-0.log:3",
                "stderr/stage-0.log:4",
            ),
        )
    ],
    "op_refused": [
        ("op_refused", "REQUEST", 1, ("ops.jsonl:7", "events.jsonl:31")),
        ("run_failed", "RUN", None, ("end.json",)),
    ],
    "killed_orchestrator": [("run_without_end", "RUN", None, ("end.json",))],
    "interrupted": [("interrupted", "NOTE", None, ("end.json",))],
    "killed_at_the_end": [("killed_at_the_end", "NOTE", 0, ("exits.jsonl:1",))],
    "cache_damaged": [
        (
            "cache_damaged",
            "CAUSE",
            1,
            (
                "events.jsonl:6",
                "events.jsonl:7",
                "events.jsonl:8",
                "failures.jsonl:1",
                "events.jsonl:8",
                "exits.jsonl:1",
            ),
        )
    ],
    "slow_stage": [("slow_stage", "NOTE", 1, ("ops.jsonl:2",))],
    "slow_link": [("slow_link", "NOTE", 1, ("ops.jsonl:2",))],
    "clock_off": [("clock_off", "NOTE", 1, ("events.jsonl:13",))],
    "recovered": [
        ("killed", "NOTE", 1, ("exits.jsonl:1", "failures.jsonl:1", "recoveries.jsonl:1"))
    ],
    "newer_version": [("other_failure", "CAUSE", 1, ("failures.jsonl:1",))],
}


def found(name: str) -> tuple[Finding, ...]:
    return diagnose(read_bundle(RECORDED / name))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_bundle_gives_its_findings(name: str) -> None:
    assert [
        (f.rule, f.rank.name, f.stage, tuple(evidence.where for evidence in f.evidence))
        for f in found(name)
    ] == EXPECTED[name]


def test_every_rule_and_every_recorded_bundle_has_its_case() -> None:
    named = {finding[0] for findings in EXPECTED.values() for finding in findings}
    assert set(EXPECTED) == set(CASES) == {path.name for path in RECORDED.iterdir()}
    # `unreachable` is named after the failure's kind.
    assert {rule.__name__ for rule in RULES} - named == {"unreachable"}


def test_the_words_are_those_that_the_user_saw() -> None:
    assert found("memory_refused")[0].sentence == "stage 0 on alpha needs 7 GB, 6 GB are free"


def test_want_of_memory_is_said_only_with_evidence() -> None:
    sentences = {found(name)[0].sentence for name in ("killed_for_memory", "killed_worker")}
    assert sentences == {
        "stage 1 on beta was ended by SIGKILL, most likely for want of memory",
        "stage 1 on beta was killed by SIGKILL while serving",
    }


def test_what_the_kernel_did_to_another_process_is_no_evidence() -> None:
    bundle = read_bundle(RECORDED / "killed_worker")
    said = ("its own word", "kernel: [26567.9] Killed process 1 (python)", "kernel: oom_kill 18")
    lines = tuple(Kept(line, f"stderr/stage-1.log:{n}") for n, line in enumerate(said, start=1))
    (finding,) = diagnose(replace(bundle, stderr={1: lines}))
    assert (finding.cause, [item.where for item in finding.evidence]) == (
        Cause.KILLED,
        ["exits.jsonl:1", "stderr/stage-1.log:1", "failures.jsonl:1"],
    )


def test_what_was_brought_back_is_told_with_what_it_took() -> None:
    assert found("recovered")[0].sentence == (
        "stage 1 on beta was killed by SIGKILL while idle; it was brought back on gamma in "
        "1.00 s, 7 tokens replayed"
    )


def test_a_stage_that_never_served_is_not_brought_back() -> None:
    bundle = read_bundle(RECORDED / "unreachable")
    record = RecoveryRecord(
        stage=1,
        host="beta",
        new_host="gamma",
        attempt=1,
        most_attempts=3,
        reason="it refuses SSH connections",
        wall_ms=bundle.failures[0].value.wall_ms,
        restart_ms=900,
        ok=True,
    )
    sentence = diagnose(bundle)[0].sentence
    back = replace(bundle, recoveries=(Kept(record, "recoveries.jsonl:1"),))
    again = replace(bundle, recoveries=(Kept(replace(record, new_host="beta"), ""),))
    assert [diagnose(each)[0].sentence for each in (back, again)] == [
        f"{sentence}; it was started on gamma instead in 900 ms",
        f"{sentence}; it was started again in 900 ms",
    ]


@pytest.mark.parametrize(
    ("error", "code", "cause"),
    [
        ("--device cuda:0 is not there: this machine has 0", 2, Cause.CONFIGURATION_REFUSED),
        ("--device cuda:0 is not there: this machine has 0", 3, Cause.LOAD_ERROR),
        ("'a/b/c' is neither an existing folder in /m nor a hub id", 2, Cause.MODEL_NOT_FOUND),
        (
            "there is no folder m in /, so it was taken for a hub id; the hub cannot be reached",
            3,
            Cause.HUB_UNREACHABLE,
        ),
    ],
)
def test_an_option_that_a_worker_refuses_is_no_fault_of_the_model(
    tmp_path: Path, error: str, code: int, cause: Cause
) -> None:
    shutil.copytree(RECORDED / "load_failed", tmp_path, dirs_exist_ok=True)
    events = tmp_path / "events.jsonl"
    told = events.read_text("utf-8").replace("model 'some/model' has no config.json", error)
    events.write_text(told.replace('"code":3', f'"code":{code}'), "utf-8")
    assert diagnose(read_bundle(tmp_path))[0].cause == cause


def test_a_silent_worker_that_may_still_be_there_is_named() -> None:
    bundle = read_bundle(RECORDED / "hung")
    stages = tuple(replace(stage, transport="local") for stage in bundle.manifest.stages)
    here = replace(bundle, manifest=replace(bundle.manifest, stages=stages))
    (there, local) = (diagnose(each)[0].advice for each in (bundle, here))
    assert there.removesuffix(local) == (
        "pid 701 on beta may still be there, stopped, and hold its memory: kill it "
        "(`kill -9 701`); "
    )


def test_a_stage_that_is_lost_once_the_answer_is_whole_is_no_cause() -> None:
    bundle = replace(read_bundle(RECORDED / "killed_worker"), end=EndRecord(exit_code=0))
    (finding,) = diagnose(bundle)
    assert (finding.rule, finding.rank.name) == ("killed", "NOTE")
    assert finding.sentence.endswith("; the run went well without it")


@pytest.mark.parametrize(("again", "rules"), [(True, []), (False, ["op_refused"])])
def test_a_freed_cache_that_was_rebuilt_is_no_finding(again: bool, rules: list[str]) -> None:
    refused = OpRecord(
        stage=1,
        host="beta",
        op="forward_range",
        rid="r",
        wall_ms=1e12,
        duration_ms=1.0,
        sent_bytes=9,
        received_bytes=9,
        ok=False,
        code="no_session",
    )
    answered = replace(refused, wall_ms=1e12 + 5, ok=again, code=None)
    ops = (Kept(refused, "ops.jsonl:1"), Kept(answered, "ops.jsonl:2"))
    bundle = replace(read_bundle(RECORDED / "finished"), ops=ops)
    assert [finding.rule for finding in diagnose(bundle)] == rules


def test_a_clock_that_is_behind_is_told_from_one_that_is_ahead() -> None:
    assert found("clock_off")[0].sentence == (
        "the clock of beta (stage 1) is 2.0 h behind that of hub"
    )


def test_every_cause_stands_in_the_documentation_and_no_other() -> None:
    text = (RECORDED.parents[2] / "docs" / "diagnosis.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(Cause)
