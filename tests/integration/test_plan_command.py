"""`orchestrator plan`, and the plan that `run` makes: what hosts tell becomes who holds what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run_cli, start_cli
from tests.support.errand_hosts import hosts_file, peer_line
from tests.support.peers.surveyed import COMMIT, MIB


def plan(hosts: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run_cli("plan", "--hosts", hosts, "--model-id", "org/m", *words)


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of the error, one for each host, without the last that says what to run."""
    lines = done.stderr.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("error: "))
    return [line for line in lines[first:] if not line.startswith("see what mends that ")]


def command_of(hosts: str, line: int) -> str:
    """The launcher of a line that begins with one."""
    return Path(hosts).read_text().splitlines()[line - 1].split('"')[1]


def stages(done: subprocess.CompletedProcess[str]) -> list[tuple[str, list[int]]]:
    found = json.loads(done.stdout)["plan"]["stages"]
    return [(stage["name"].rpartition("/")[2], stage["layers"]) for stage in found]


def test_uneven_hosts_get_uneven_shares(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(gbps=10), peer_line(gbps=30))
    done = plan(hosts, "--json")
    assert (done.returncode, stages(done)) == (
        0,
        [("hosts.txt:1", [0, 2]), ("hosts.txt:2", [2, 8])],
    )
    got = json.loads(done.stdout)
    assert got["model"] == {
        "model_id": "org/m",
        "commit": COMMIT,
        "model_type": "peer",
        "num_layers": 8,
        "max_context": 256,
        "prefill_chunk": 256,
        "size_bytes": 900 * MIB,
    }
    # One layer is on every host already.
    assert [stage["download_bytes"] // MIB for stage in got["plan"]["stages"]] == [150, 650]
    assert [host["read_gbps"] for host in got["hosts"]] == [10, 30]


def test_the_table_has_each_stage_and_what_it_needs(tmp_path: Path) -> None:
    done = plan(hosts_file(tmp_path, peer_line("slots=2", machine="m"), "spare gpu9"))
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == (f"org/m at {COMMIT[:12]} (peer), 256 positions, prefill in chunks of 256")
    assert {"host", "layers", "weights", "KV", "free", "download"} <= set(lines[1].split())
    assert len([line for line in lines if " 450 MiB " in line]) == 2
    assert lines[-1] == "note: spare host gpu9 is kept aside until a stage is lost"


def test_memory_bounds_of_the_hosts_file_count(tmp_path: Path) -> None:
    # 100 MiB of libraries, 50 at the end, and room for two layers.
    hosts = hosts_file(tmp_path, peer_line("memory=370MiB"), peer_line())
    done = plan(hosts, "--json")
    assert stages(done)[0] == ("hosts.txt:1", [0, 2])
    limits = [host["memory_limit_bytes"] for host in json.loads(done.stdout)["hosts"]]
    assert limits == [370 * MIB, None]


def test_what_does_not_fit_is_exit_4_with_what_would(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(free_mib=300), peer_line(free_mib=300))
    done = plan(hosts, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], error["exit_code"]) == (4, "does_not_fit", 4)
    assert [host["layers"] for host in error["hosts"]] == [[0, 2], [2, 4]]
    assert "the model does not fit" in done.stderr.splitlines()[-1]
    assert error["remedies"]


@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        ("fails", 3, "cannot survey its host: config.json is missing in /m"),
        ("forgets", 5, "ended well but told nothing of its host"),
        ("serves", 5, "says that it serves, but was started to survey its host"),
        ("dies", 5, "was killed by SIGKILL while surveying"),
        ("eof", 5, "ended before it was done (stdin_eof)"),
    ],
)
def test_a_host_that_cannot_be_surveyed_is_named(
    tmp_path: Path, how: str, code: int, sentence: str
) -> None:
    hosts = hosts_file(tmp_path, peer_line(), peer_line(errand=how))
    done = plan(hosts)
    (error,) = errors(done)
    assert (done.returncode, done.stdout) == (code, "")
    assert error.startswith("error: the worker on env ") and sentence in error


def test_a_host_that_takes_too_long_is_named(tmp_path: Path) -> None:
    done = plan(hosts_file(tmp_path, peer_line(errand="hangs")), "--start-timeout-s", "2")
    assert done.returncode == 5
    assert "was not done within 2 s" in errors(done)[0]


def test_a_host_that_ssh_does_not_reach_is_exit_5(tmp_path: Path) -> None:
    ssh = f"{Path(__file__).parents[1]}/bin/ssh --fail 'ssh: connect: Connection refused'"
    done = plan(hosts_file(tmp_path, peer_line(), "gpu1"), "--ssh-command", ssh)
    assert done.returncode == 5
    assert "error: the worker on gpu1 refuses SSH connections" in errors(done)[0]


def test_every_host_that_cannot_be_asked_is_named_and_what_to_run(tmp_path: Path) -> None:
    gone = 'command="/no/such/launcher"'
    hosts = hosts_file(tmp_path, peer_line(), peer_line(errand="dies"), gone, "spare local")
    done = plan(hosts)
    told = [line.partition(" on ")[2].split()[0] for line in errors(done)]
    assert (done.returncode, sorted(told)) == (5, ["/no/such/launcher", "env"])
    assert done.stderr.splitlines()[-1] == (
        f"see what mends that with: orchestrator doctor --hosts {hosts}"
    )


def test_a_spare_is_asked_in_the_place_of_a_host_that_is_not_there(tmp_path: Path) -> None:
    gone = 'command="/no/such/launcher" layers=0:2'
    hosts = hosts_file(tmp_path, gone, peer_line(), f"spare {peer_line(machine='m2')}")
    done = plan(hosts, "--json")
    notes = json.loads(done.stdout)["notes"]
    assert (stages(done)[0], [note.partition(": ")[0] for note in notes[:1]]) == (
        ("hosts.txt:3", [0, 2]),
        [f"spare host {command_of(hosts, 3)} takes the place of /no/such/launcher"],
    )


def test_a_spare_that_is_not_there_either_is_named_beside_its_host(tmp_path: Path) -> None:
    hosts = hosts_file(
        tmp_path, 'command="/no/such/one"', peer_line(), 'spare command="/no/such/two"'
    )
    done = plan(hosts)
    told = [line.partition(" on ")[2].split()[0] for line in errors(done)]
    assert (done.returncode, told) == (5, ["/no/such/one", "/no/such/two"])


def test_a_quantization_that_a_host_lacks_is_said_before_anything_starts(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(), peer_line("quantization=int8"))
    done = plan(hosts)
    assert done.returncode == 2
    assert "as int8: bitsandbytes is not installed" in done.stderr.splitlines()[-1]


def run_peers(tmp_path: Path, hosts: str, *words: str) -> tuple[int, dict[str, Any], str]:
    done = run_cli(
        "run", "--hosts", hosts, "--model-id", "org/m", "--prompt", "a b", "--max-new-tokens", "2",
        "--raw", "--json", "--bundle-dir", str(tmp_path / "bundles"), *words,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout), done.stderr


def manifest(tmp_path: Path) -> dict[str, Any]:
    (bundle,) = (tmp_path / "bundles").iterdir()
    loaded: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    return loaded


def test_run_uses_the_plan_and_pins_the_commit(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(gbps=10), peer_line(gbps=30), peer_line(free_mib=50))
    code, got, err = run_peers(tmp_path, hosts)
    assert (code, [stage["layer_range"] for stage in got["stages"]]) == (0, [[0, 2], [2, 8]])
    assert "note: " in err and "hosts.txt:3" in err
    kept = manifest(tmp_path)
    assert all(f"--revision={COMMIT}" in stage["command"] for stage in kept["stages"])
    assert [stage["layers"] for stage in kept["plan"]["stages"]] == [[0, 2], [2, 8]]


def test_an_even_split_asks_nobody(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(errand="fails"), peer_line(errand="fails"))
    code, got, _ = run_peers(tmp_path, hosts, "--even-split")
    assert (code, [stage["layer_range"] for stage in got["stages"]]) == (0, [[0, 4], [4, 8]])
    assert "plan" not in manifest(tmp_path)


def test_a_run_that_cannot_fit_starts_no_stage(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(free_mib=300), peer_line(free_mib=300))
    code, got, _ = run_peers(tmp_path, hosts)
    assert (code, got["error"]["kind"], got["stages"]) == (4, "does_not_fit", [])
    assert not (tmp_path / "bundles").exists()


@pytest.mark.parametrize("command", ["plan", "fetch"])
def test_ctrl_c_ends_the_workers_and_the_command(tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "up")
    fifo = os.open(tmp_path / "up", os.O_RDWR)  # so that neither end waits for the other
    hosts = hosts_file(tmp_path, *[peer_line(errand="hangs", up=tmp_path / "up")] * 2)
    process = start_cli(command, "--hosts", hosts, "--model-id", "org/m")
    assert os.read(fifo, 1) + os.read(fifo, 1) == b"uu"
    os.close(fifo)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().splitlines()[-1] == "interrupted by SIGINT"


def test_a_survey_that_fails_leaves_a_bundle(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(), peer_line(errand="fails"))
    code, got, _ = run_peers(tmp_path, hosts)
    assert (code, got["error"]["stage"]) == (3, 1)
    (bundle,) = (tmp_path / "bundles").iterdir()
    begun_ms = json.loads((bundle / "manifest.json").read_text())["wall_ms"]
    first = json.loads((bundle / "events.jsonl").read_text().splitlines()[0])
    assert begun_ms < first["wall_ms"]
    shown = run_cli("bundle", "show", str(bundle))
    assert "could not load its layers" in shown.stdout or "cannot survey" in shown.stdout
    assert "config.json is missing in /m" in shown.stdout
