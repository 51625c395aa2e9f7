"""`orchestrator run` as a user sees it, with stub workers: stdout, stderr, exit code, bundle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cli import (
    COMMAND,
    ROOT,
    environment,
    run_cli,
    start_cli,
    stub_answer,
    stub_tokens,
)

PROMPT = "four words of prompt"
PROMPT_TOKENS = len(stub_tokens(PROMPT))
ENDLESS = ("--local", "2", "--prompt", PROMPT, "--max-new-tokens", "10000000")


def text_of(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def stub(tmp_path: Path, *words: str, **kwargs: str) -> subprocess.CompletedProcess[str]:
    return run_cli("run", "--stub", "--bundle-dir", str(tmp_path / "bundles"), *words, **kwargs)


def start_stub(tmp_path: Path, *words: str) -> subprocess.Popen[bytes]:
    return start_cli("run", "--stub", "--bundle-dir", str(tmp_path / "bundles"), *words)


def the_bundle(tmp_path: Path) -> Path:
    (bundle,) = (tmp_path / "bundles").iterdir()
    return bundle


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def worker_pids(tmp_path: Path) -> dict[int, int]:
    """Stage -> pid, from the ready lines in the bundle of a run that has shown text."""
    lines = [record.get("line") for record in records(the_bundle(tmp_path) / "events.jsonl")]
    ready = [line for line in lines if isinstance(line, dict) and line.get("status") == "ready"]
    return {line["stage"]: line["pid"] for line in ready}


def first_text(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    text: bytes = process.stdout.read(16)
    assert text
    return text


def test_stdout_is_the_text_and_nothing_else(tmp_path: Path) -> None:
    done = stub(tmp_path, "--local", "3", "--prompt", PROMPT, "--max-new-tokens", "60")
    assert (done.returncode, done.stdout) == (0, text_of(stub_answer(PROMPT, 3, 60)))
    summary = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"3 stages ready after [\d.]+ s, 4 prompt \+ 60 new tokens, first token after [\d.]+ s, "
        r"[\d.]+ tokens/s, (\d+ of \d+ guesses right, )?finish: length, "
        rf"bundle: {re.escape(str(the_bundle(tmp_path)))}",
        summary,
    )
    assert [line for line in done.stderr.splitlines() if line.endswith("stage 2 on local: ready")]


def test_the_bundle_holds_no_text_of_the_user(tmp_path: Path) -> None:
    words = ("--prompt", "zebra quagga", "--stop", "okapi gnu", "--temperature", "1", "--json")
    done = stub(tmp_path, "--local", "1", "--max-new-tokens", "2", *words)
    files = [path for path in the_bundle(tmp_path).rglob("*") if path.is_file()]
    kept = b"".join(path.read_bytes() for path in files)
    assert not [word for word in (b"zebra", b"quagga", b"okapi", b"gnu") if word in kept]
    # What is needed to repeat the run is there.
    (request,) = records(the_bundle(tmp_path) / "requests.jsonl")
    assert request["options"]["seed"] == json.loads(done.stdout)["seed"] > 0


def test_json_is_one_object_with_everything(tmp_path: Path) -> None:
    words = ("--local", "2", "--max-new-tokens", "3", "--json", "--raw")
    done = stub(tmp_path, *words, stdin=PROMPT + "\n")
    got = json.loads(done.stdout)
    timings, stages = got.pop("timings"), got.pop("stages")
    ids = stub_answer(PROMPT, 2, 3)
    assert got == {
        "text": text_of(ids),
        "token_ids": ids,
        "finish_reason": "length",
        "matched_stop": None,
        "usage": {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7},
        "bundle": str(the_bundle(tmp_path)),
        "notes": [],
        "seed": None,
        "recoveries": [],
        # The base64 texts of 4 rows of 32 bytes, and of one row twice.
        "history_bytes": 172 + 2 * 44,
        "wire_encodings": ["bf16"],
        "direct_links": [False],
        # The first token after the prompt's is waited for, and a guess at the last is of no use.
        "speculation": None,
    }
    assert sorted(timings) == ["start_ms", "tokens_per_s", "total_ms", "ttft_ms"]
    assert [(s["stage"], s["layer_range"]) for s in stages] == [(0, [0, 64]), (1, [64, 128])]


def test_the_prompt_comes_from_a_file_without_its_last_line_break(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("é 日本\r\n", "utf-8")
    done = stub(
        tmp_path, "--local", "1", "--prompt-file", str(tmp_path / "prompt.txt"),
        "--max-new-tokens", "5",
    )  # fmt: skip
    assert done.stdout == text_of(stub_answer("é 日本", 1, 5))


def test_a_long_prompt_goes_in_chunks(tmp_path: Path) -> None:
    prompt = "word " * 23
    words = ("--local", "2", "--prompt", prompt, "--prefill-chunk", "10", "--max-new-tokens", "4")
    done = stub(tmp_path, *words)
    assert done.stdout == text_of(stub_answer(prompt, 2, 4, chunk=10))
    ops = [record["op"] for record in records(the_bundle(tmp_path) / "ops.jsonl")]
    assert [ops.count(op) for op in ("embed_and_forward", "decode_step")] == [3, 3]


def test_a_stop_string_ends_the_text_before_it(tmp_path: Path) -> None:
    text = text_of(stub_answer(PROMPT, 2, 40))
    stop = text[20:27]
    words = ("--local", "2", "--prompt", PROMPT, "--stop", "never", "--stop", stop, "--json")
    got = json.loads(stub(tmp_path, *words).stdout)
    assert (got["text"], got["finish_reason"], got["matched_stop"]) == (
        text[: text.index(stop)],
        "stop",
        stop,
    )


def test_hosts_file_with_layers_in_any_order(tmp_path: Path) -> None:
    hosts, ssh = tmp_path / "hosts.txt", tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o700)
    remote = f"python={sys.executable} env.PYTHONPATH={ROOT}"
    hosts.write_text(
        f"me@gpu1:2222 {remote} layers=100:128\n"
        "spare gpu9\n"
        f'command="env A=1" {remote} layers=0:10\n'
        "local slots=2  # share what is left\n"
    )
    words = ("--hosts", str(hosts), "--ssh-command", str(ssh), "--prompt", PROMPT)
    words = (*words, "--max-new-tokens", "6", "--json")
    done = stub(tmp_path, *words)
    got = json.loads(done.stdout)
    assert got["token_ids"] == stub_answer(PROMPT, 4, 6)
    assert [(s["host"], s["layer_range"]) for s in got["stages"]] == [
        ("env A=1", [0, 10]),
        ("local", [10, 55]),
        ("local", [55, 100]),
        ("me@gpu1:2222", [100, 128]),
    ]
    assert "note: spare host gpu9 is kept aside until a stage is lost" in done.stderr


@pytest.mark.parametrize(
    ("words", "hosts", "message"),
    [
        (("--prompt", "x"), "local\nlocal device=gpu\n", "hosts.txt:2: device=gpu must be auto"),
        (("--prompt", "x"), "local layers=0:200\n", "hosts.txt:1: layers=0:200 goes beyond"),
        (
            ("--prompt", "x"),
            "local layers=8:128\n",
            "hosts.txt:1: beside layers=8:128, layers 0:8 of 0:128 are on no stage",
        ),
        (("--prompt", "x"), "local env.A_TOKEN=x\n", "hosts.txt:1: env.A_TOKEN= would be readable"),
        ((), "local\n", "the prompt is empty"),
        (("--prompt-file", "none.txt"), "local\n", "cannot read the prompt from none.txt"),
    ],
)
def test_what_cannot_work_is_refused_before_a_process_starts(
    tmp_path: Path, words: tuple[str, ...], hosts: str, message: str
) -> None:
    (tmp_path / "hosts.txt").write_text(hosts)
    done = run_cli("run", "--stub", "--hosts", "hosts.txt", "--no-bundle", *words, cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert line.startswith("error: ") and message in line


def test_an_error_before_the_start_is_json_too(tmp_path: Path) -> None:
    done = stub(tmp_path, "--local", "1", "--json")
    got = json.loads(done.stdout)
    assert (done.returncode, got["finish_reason"], got["error"]["kind"]) == (2, "error", "usage")


@pytest.mark.parametrize("option", ["--prompt", "--system", "--stop"])
def test_text_that_is_not_utf_8_is_refused(tmp_path: Path, option: str) -> None:
    done = stub(tmp_path, "--local", "1", "--prompt", "x", option, "a\udcff")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not UTF-8 at character 2" in done.stderr


@pytest.mark.parametrize("where", ["closed", "full", "unread"])
def test_the_answer_comes_also_where_stderr_cannot_be_written(where: str) -> None:
    unread, stderr = os.pipe()
    os.close(unread)
    shell = {"closed": 'exec "$@" 2>&-', "full": 'exec "$@" 2>/dev/full', "unread": 'exec "$@"'}
    # The bundle has something to warn of, and the display and the summary to tell.
    words = (*COMMAND, "run", "--stub", "--local", "1", "--bundle-dir", "/proc/none")
    words = (*words, "--prompt", PROMPT, "--max-new-tokens", "3")
    done = subprocess.run(
        ["sh", "-c", shell[where], "sh", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment(),
        timeout=60,
        check=False,
    )
    os.close(stderr)
    assert (done.returncode, done.stdout.decode()) == (0, text_of(stub_answer(PROMPT, 1, 3)))


def test_more_stages_than_open_files_is_one_sentence() -> None:
    words = (*COMMAND, "run", "--stub", "--local", "9", "--prompt", PROMPT, "--no-bundle")
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 24; exec "$@"', "sh", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(),
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (5, False)
    assert "allows no more open files" in done.stderr.splitlines()[-1]


def test_a_prompt_without_tokens_is_refused(tmp_path: Path) -> None:
    done = stub(tmp_path, "--local", "1", "--raw", "--prompt", "  ")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: the prompt is empty: it has no tokens" in done.stderr


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_lost_stage_is_one_sentence_and_never_a_stop(tmp_path: Path, as_json: bool) -> None:
    process = start_stub(tmp_path, *ENDLESS, "--restarts", "0", *["--json"] * as_json)
    if as_json:
        wait_for_op(tmp_path, "decode_step")
        shown = b""
    else:
        shown = first_text(process)
    subprocess.run(["kill", "-KILL", str(worker_pids(tmp_path)[1])], check=True)
    out, err = process.communicate(timeout=30)
    errors = [line for line in err.decode().splitlines() if line.startswith("error: ")]
    assert (process.returncode, len(errors)) == (5, 1)
    assert errors[0].startswith("error: stage 1 on local was killed by SIGKILL")
    advice = f"see: orchestrator bundle diagnose {the_bundle(tmp_path)}"
    assert err.decode().splitlines()[-1] == advice
    if as_json:
        got = json.loads(out)
        # How fast it was until then is known, as far as tokens had come.
        assert [got["timings"][name] is not None for name in ("ttft_ms", "tokens_per_s")] == [
            len(got["token_ids"]) > least for least in (0, 1)
        ]
        assert (got["finish_reason"], got["error"]["stage"], got["error"]["exit_code"]) == (
            "error", 1, 5,
        )  # fmt: skip
    else:
        assert text_of(stub_answer(PROMPT, 2, 8)).startswith((shown + out).decode()[:16])
    (failure,) = records(the_bundle(tmp_path) / "failures.jsonl")
    (request,) = records(the_bundle(tmp_path) / "requests.jsonl")
    assert (failure["stage"], failure["kind"], request["finish_reason"]) == (1, "crashed", "error")


def test_a_stage_that_is_restarted_leaves_the_text_as_it_is(tmp_path: Path) -> None:
    words = ("--local", "2", "--prompt", PROMPT, "--max-new-tokens", "400")
    process = start_stub(tmp_path, *words)
    shown = first_text(process)
    subprocess.run(["kill", "-KILL", str(worker_pids(tmp_path)[1])], check=True)
    out, err = process.communicate(timeout=60)
    notes = [line for line in err.decode().splitlines() if line.startswith("note: stage ")]
    (recovery,) = records(the_bundle(tmp_path) / "recoveries.jsonl")
    assert (process.returncode, (shown + out).decode()) == (
        0,
        text_of(stub_answer(PROMPT, 2, 400)),
    )
    assert [note.partition(";")[0].rpartition(" after ")[0] or note for note in notes][1:] == [
        "note: stage 1 on local serves again"
    ]
    assert notes[0].startswith("note: stage 1 on local was killed by SIGKILL ")
    assert (recovery["stage"], recovery["ok"]) == (1, True)
    assert ", 1 restart, finish: length" in err.decode()


def read_stderr_until(process: subprocess.Popen[bytes], words: bytes) -> None:
    assert process.stderr is not None
    seen = b""
    while words not in seen:
        byte = process.stderr.read(1)
        assert byte, seen
        seen += byte


def wait_for_op(tmp_path: Path, op: str) -> None:
    """Wait until a run that shows no text has done an op."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if any(op in path.read_text() for path in (tmp_path / "bundles").glob("*/ops.jsonl")):
            return
        time.sleep(0.02)
    raise AssertionError(f"no {op} within 30 s")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_one_signal_ends_the_run_in_order(tmp_path: Path, number: signal.Signals) -> None:
    process = start_stub(tmp_path, *ENDLESS)
    first_text(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert f"interrupted by {number.name}" in err.decode()
    exits = records(the_bundle(tmp_path) / "exits.jsonl")
    assert [(e["exit_code"], e["expected"]) for e in exits] == [(0, True), (0, True)]
    (request,) = records(the_bundle(tmp_path) / "requests.jsonl")
    assert request["finish_reason"] == "cancelled"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    process = start_stub(tmp_path, *ENDLESS)
    first_text(process)
    # A stopped worker cannot obey the first rungs of the ladder.
    subprocess.run(["kill", "-STOP", str(worker_pids(tmp_path)[0])], check=True)
    interrupt_twice(process)
    exits = {e["stage"]: e.get("signal") for e in records(the_bundle(tmp_path) / "exits.jsonl")}
    assert exits[0] == "SIGKILL"


def test_a_second_signal_ends_a_start_at_once(tmp_path: Path) -> None:
    # A launcher that obeys neither the end of stdin nor SIGTERM, and says when it runs.
    script = tmp_path / "deaf"
    script.write_text(f"trap '' TERM; echo up > {tmp_path}/up; tail -f /dev/null & wait; wait")
    (tmp_path / "hosts.txt").write_text(f'command="sh {script}"\n')
    os.mkfifo(tmp_path / "up")
    process = start_stub(tmp_path, "--hosts", str(tmp_path / "hosts.txt"), "--prompt", PROMPT)
    assert (tmp_path / "up").read_text() == "up\n"
    interrupt_twice(process)
    assert not (the_bundle(tmp_path) / "failures.jsonl").exists()
    (left,) = records(the_bundle(tmp_path) / "exits.jsonl")
    assert (left.get("signal"), left["expected"]) == ("SIGKILL", True)


def interrupt_twice(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C, and again once the first is being obeyed."""
    assert process.stderr is not None and process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    read_stderr_until(process, b"SIGINT: ending the stages")
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 130


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    process = start_stub(tmp_path, *ENDLESS)
    first_text(process)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(timeout=30), "Traceback" in err, "error" in err) == (0, False, False)
