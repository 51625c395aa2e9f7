"""The writer keeps every fact at once, keeps secrets out, stays within bounds and never raises."""

from __future__ import annotations

import json
import resource
import stat
from pathlib import Path

from orchestrator.bundle.manifest import Manifest
from orchestrator.bundle.reader import read_bundle
from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    OpRecord,
    RequestRecord,
    StageRecord,
)
from orchestrator.bundle.segments import SegmentedLog, segments_of
from orchestrator.bundle.writer import Bounds, BundleWriter
from worker.protocol.codec import EventLine, Garbage, encode_event
from worker.protocol.events import Envelope, Importing

SECRET = "s3cr3t-va/ue"
EVENT = encode_event(Importing(library="torch"), Envelope(stage=1, wall_ms=5.0, uptime_ms=2.0))
OP = OpRecord(
    stage=1,
    host="beta",
    op="forward_range",
    rid="r1",
    wall_ms=10.0,
    duration_ms=2.5,
    sent_bytes=3,
    received_bytes=4,
    ok=True,
)
EXIT = ExitRecord(
    stage=1, host="beta", wall_ms=20.0, signal="SIGKILL", expected=False, sentence="it ended"
)
FAILURE = FailureRecord(
    stage=1,
    host="beta",
    kind="crashed",
    phase="idle",
    cause="ended",
    sentence="stage 1 on beta ended",
    wall_ms=19.0,
    last_events=("op", "op"),
    stderr_tail=("bye",),
)
REQUEST = RequestRecord(
    rid=7,
    wall_ms=1.0,
    prompt_tokens=2,
    completion_tokens=3,
    finish_reason="stop",
    ttft_ms=None,
    duration_ms=30.0,
    decode_tokens_per_s=9.5,
    options={"temperature": 0.5},
)


def test_every_fact_is_in_a_file_before_the_call_returns(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(stages=(STAGE,)))
    writer.line(1, "beta", EVENT, 6.0)
    writer.line(1, "beta", b"who am I\n", 7.0)
    writer.stderr(1, "beta", b"warning\n")
    writer.op(OP)
    writer.failure(FAILURE)
    writer.exit(EXIT)
    writer.request(REQUEST)
    bundle = read_bundle(tmp_path / "b")  # Not closed, as after a kill.
    writer.close()
    assert bundle.problems == ()
    assert [kept.value.message for kept in bundle.lines] == [
        EventLine(Importing(library="torch"), Envelope(stage=1, wall_ms=5.0, uptime_ms=2.0)),
        Garbage(b"who am I", "neither a reply, an event nor ready"),
    ]
    assert (
        bundle.manifest.stages,
        [kept.value for kept in bundle.ops],
        [kept.value for kept in bundle.exits],
        [kept.value for kept in bundle.failures],
        [kept.value for kept in bundle.requests],
        [kept.value for kept in bundle.stderr[1]],
        bundle.end,
    ) == ((STAGE,), [OP], [EXIT], [FAILURE], [REQUEST], ["warning"], None)


STAGE = StageRecord(stage=1, host="beta", transport="ssh", layer_range="4:8", command=("ssh", "b"))


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b")
    writer.stderr(0, "alpha", b"x\n")
    writer.close(0)
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    assert modes == {
        "b": 0o700,
        "b/stderr": 0o700,
        "b/manifest.json": 0o600,
        "b/stderr/stage-0.log": 0o600,
        "b/end.json": 0o600,
    }


def test_no_secret_stands_in_any_file(tmp_path: Path) -> None:
    quoted = json.dumps({"event": "x", "why": f"GET /?t={SECRET}"}).encode()
    manifest = Manifest(
        command=("orchestrator", "run", "--hf-token", SECRET, f"--api-key={SECRET}", "--json"),
        config={"api_key": SECRET, "nested": [{"Password": SECRET}], "url": f"http://x/{SECRET}"},
        hosts=(f"gpu1 env.HF_TOKEN={SECRET}",),
        stages=(
            StageRecord(stage=0, host="h", transport="ssh", command=(f"A_TOKEN={SECRET} py",)),
        ),
    )
    writer = BundleWriter(tmp_path / "b", manifest, secrets=[SECRET])
    writer.line(0, "h", quoted + b"\n", 1.0)
    writer.line(0, "h", f"no JSON {SECRET}\n".encode(), 1.0)
    writer.stderr(0, "h", SECRET[:5].encode())
    writer.stderr(0, "h", SECRET[5:].encode() + b"\nhf_abcdefghijklmnopqrst\n")
    writer.failure(
        FailureRecord(
            stage=0,
            host="h",
            kind="crashed",
            phase="idle",
            cause=SECRET,
            sentence=SECRET,
            wall_ms=1.0,
            stderr_tail=(f"x {SECRET}",),
        )
    )
    writer.close(1, f"failed with {SECRET}")
    everything = b"".join(p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file())
    assert (SECRET.encode() in everything, b"hf_abcdef" in everything) == (False, False)


def test_what_the_user_wrote_is_not_kept(tmp_path: Path) -> None:
    rest = ("--seed", "4")
    command = ("orchestrator", "run", "--prompt", "- my diary", "--system=be kind", *rest)
    manifest = Manifest(command=command, config={"prompt": "my diary", "max_new_tokens": 4})
    BundleWriter(tmp_path / "b", manifest).close()
    kept = read_bundle(tmp_path / "b").manifest
    assert (kept.command, kept.config) == (
        ("orchestrator", "run", "--prompt", "<10 characters>", "--system=<7 characters>", *rest),
        {"prompt": "<8 characters>", "max_new_tokens": 4},
    )


def test_an_unwritable_place_gives_one_warning_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    warnings: list[str] = []
    writer = BundleWriter(tmp_path / "file" / "b", warn=warnings.append)
    writer.line(0, "h", EVENT, 1.0)
    writer.op(OP)
    writer.close(0)
    why = "cannot be written (Not a directory); the run goes on without it"
    assert warnings == [
        f"warning: the bundle {writer.path} {why}; choose another place with --bundle-dir"
    ]


def test_a_full_disk_gives_one_warning_and_leaves_what_was_written(tmp_path: Path) -> None:
    warnings: list[str] = []
    writer = BundleWriter(tmp_path / "b", warn=warnings.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        for _ in range(200):
            writer.op(OP)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.close(0)
    kept = read_bundle(tmp_path / "b")
    assert (len(warnings), len(kept.problems), {k.value for k in kept.ops}) == (1, 1, {OP})


def test_a_full_file_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    log = SegmentedLog(tmp_path / "x.log", segment_bytes=40)
    for number in range(100):
        log.append(b"%09d\n" % number)
    log.close()
    found = list(segments_of(tmp_path / "x.log"))
    kept = [int(line) for segment in found for line in segment.path.read_text().splitlines()]
    assert (kept, [segment.gap_bytes for segment in found], log.dropped_bytes) == (
        [*range(4), *range(92, 100)],
        [0, 880, 0],
        880,
    )


def test_a_bundle_that_was_cut_says_where(tmp_path: Path) -> None:
    bounds = Bounds(records_bytes=1000, stderr_bytes=100, line_bytes=50)
    writer = BundleWriter(tmp_path / "b", bounds=bounds)
    for number in range(100):
        writer.stderr(0, "h", b"%019d\n" % number)
    writer.line(0, "h", b"x" * 80 + b"\n", 1.0)
    writer.close(0)
    kept = read_bundle(tmp_path / "b")
    assert (kept.problems, kept.lines[0].value.raw) == (
        ("stderr/stage-0.1800.log: 1700 bytes before it were dropped",),
        "x" * 50,
    )
    assert kept.end is not None
    assert kept.end.dropped_bytes == 1700
