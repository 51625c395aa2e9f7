"""Variables that workers elsewhere are given: over stdin, whole, and nowhere else to be seen."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from orchestrator.config import surroundings
from orchestrator.plan_options import ReachOptions
from orchestrator.setting import reach_setting
from orchestrator.stage_specs import Place, spec_of
from orchestrator.stages import Stages
from tests.support.cli import run_cli
from tests.support.stages import PATIENT, MemoryRecorder, odd_spec, stub_spec
from tests.support.worker_process import stub_worker
from worker.protocol.ops import Environment

TOKEN = "hf_" + "s3cret" * 6
ODD = 'two\nlines "and" \\ é 🙂 \udcff\ttab'


def told(**secrets: str) -> tuple[dict[str, bytes], MemoryRecorder, list[str]]:
    """Start a worker with the secrets; return what it has of them, and every command line."""
    recorder, commands = MemoryRecorder(), []

    async def ask() -> dict[str, bytes]:
        spec = replace(odd_spec(), secrets=secrets)
        async with await Stages.start([spec], recorder=recorder, timeouts=PATIENT) as pipeline:
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                commands.append(" ".join(process.cmdline()))
            return {
                name: bytes(await pipeline.tokenize("r", f"environment {name}")) for name in secrets
            }

    return asyncio.run(ask()), recorder, commands


def test_a_worker_has_them_to_the_byte_before_it_loads() -> None:
    secrets = {"HF_TOKEN": TOKEN, "https_proxy": ODD, "EMPTY": ""}
    found, _, _ = told(**secrets)
    sent = {name: text.encode("utf-8", "surrogateescape") for name, text in secrets.items()}
    assert found == sent


def test_they_stand_on_no_command_line_and_in_no_record() -> None:
    _, recorder, commands = told(HF_TOKEN=TOKEN)
    spec = replace(odd_spec(), secrets={"HF_TOKEN": TOKEN})
    seen = [
        *commands,
        b"".join(recorder.lines).decode(),
        recorder.stderr_text.decode(),
        repr(recorder.ops),
        repr(spec),
        " ".join(spec.launch("N").argv),
        repr(Environment(request_id=1, variables={"HF_TOKEN": TOKEN})),
    ]
    assert [text for text in seen if TOKEN in text] == []


def test_a_worker_answers_pings_and_refuses_other_ops_until_they_came() -> None:
    with stub_worker("--await-environment") as worker:
        worker.event("starting")
        worker.send({"op": "ping", "request_id": 1}, {"op": "tokenize", "request_id": 2})
        early = [worker.reply(), worker.reply()]
        refused = worker.call(op="environment", request_id=3, variables={"PATH": TOKEN})
        taken = worker.call(op="environment", request_id=4, variables={"HF_TOKEN": TOKEN})
        worker.ready()
        again = worker.call(op="environment", request_id=5, variables={"HF_TOKEN": TOKEN})
        worker.stdin.close()
        worker.end()
        written = json.dumps(worker.lines) + worker.stderr_text()
    codes = [line.get("code") for line in (*early, refused, taken, again)]
    assert (codes, taken) == (
        [None, "bad_field", "bad_field", None, "unknown_op"],
        {"request_id": 4, "variables": 1},
    )
    assert TOKEN not in written


def test_a_worker_that_is_told_nothing_ends_with_its_stdin() -> None:
    with stub_worker("--await-environment") as worker:
        worker.event("starting")
        worker.stdin.close()
        assert (worker.end(), worker.lines[-1]["reason"]) == (0, "stdin_eof")


def test_what_is_set_here_goes_to_workers_elsewhere_and_a_host_s_own_wins(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("local\ngpu1\ngpu2 env.HTTPS_PROXY= env.HF_ENDPOINT=http://own\n")
    options = ReachOptions(
        hosts=hosts,
        local=None,
        accept_new=False,
        ssh_command="ssh",
        start_timeout_s=None,
        cache_dir=None,
        forward=["WANDB_KEY"],
    )
    around = surroundings(
        {
            "HF_TOKEN": TOKEN,
            "HF_ENDPOINT": "http://hub",
            "HTTPS_PROXY": "http://u:passw0rd@proxy:1",
            "no_proxy": "",
            "WANDB_KEY": "wandb-key",
            "OTHER": "other",
        }
    )
    with ExitStack() as hold:
        setting = reach_setting(options, around, hold)
    specs = [
        spec_of(Place(entry, i, 3), setting.worker, setting.ways, local_workers=1)
        for i, entry in enumerate(setting.entries)
    ]
    everything = {
        "HF_TOKEN": TOKEN,
        "HF_ENDPOINT": "http://hub",
        "HTTPS_PROXY": "http://u:passw0rd@proxy:1",
        "WANDB_KEY": "wandb-key",
    }
    own = {"HF_TOKEN": TOKEN, "WANDB_KEY": "wandb-key"}
    assert [spec.secrets for spec in specs] == [{}, everything, own]
    assert around.masked(["WANDB_KEY"]) == tuple(sorted([TOKEN, "passw0rd", "wandb-key"]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NOT_SET_HERE", "NOT_SET_HERE is not set here; export it first"),
        ("PATH", "PATH is read when a worker starts"),
        ("A=B", "'A=B' is not a variable's name"),
    ],
)
def test_what_cannot_be_forwarded_is_a_usage_error(name: str, words: str) -> None:
    ended = run_cli("run", "--local", "1", "--stub", "--prompt", "x", "--forward", name)
    assert (ended.returncode, words in ended.stderr) == (2, True)


def test_a_local_worker_needs_no_telling() -> None:
    assert "--await-environment" not in stub_spec().launch("N").argv
