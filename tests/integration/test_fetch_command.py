"""`orchestrator fetch`: each stage's weights come to its host once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import ROOT, run_cli
from tests.support.errand_hosts import hosts_file, peer_line
from tests.support.hub import COMMIT, Hub, serve_hub
from tests.support.peers.surveyed import MIB
from tests.support.tiny import tiny_checkpoint

REPO = "org/tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama", sharded=True)


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that workers of this test are told of, and an empty cache."""
    with serve_hub(Hub({REPO: model})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield served


def test_the_second_fetch_has_nothing_to_do(hub: Hub, tmp_path: Path) -> None:
    first = run_cli("fetch", "--local", "2", "--model-id", REPO, "--json")
    got = json.loads(first.stdout)["stages"]
    assert first.returncode == 0, first.stderr
    parts = [stage["fetched_bytes"] / stage["stage_bytes"] for stage in got]
    assert all(0.95 < part <= 1 for part in parts), got  # the rate is told with three digits
    hub.forget()
    second = run_cli("fetch", "--local", "2", "--model-id", REPO)
    assert (second.returncode, hub.sent_bytes(".safetensors")) == (0, 0)
    assert second.stdout.splitlines()[-1] == "nothing to fetch: every stage has its weights"


def test_what_cannot_be_fetched_is_one_sentence(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(), peer_line(errand="fails"))
    done = run_cli("fetch", "--hosts", hosts, "--model-id", "org/m", "--even-split")
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (3, "")
    assert last.startswith("error: stage 1 on env ")
    assert last.endswith("cannot fetch its weights: config.json is missing in /m; give a model")


def test_planned_layers_are_fetched_and_counted(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(gbps=10), peer_line(gbps=30))
    done = run_cli("fetch", "--hosts", hosts, "--model-id", "org/m", "--json")
    assert (done.returncode, json.loads(done.stdout)["stages"]) == (
        0,
        [
            {
                "stage": stage,
                "host": json.loads(done.stdout)["stages"][stage]["host"],
                "layers": layers,
                "stage_bytes": num_layers * 100 * MIB,
                "fetched_bytes": num_layers * 100 * MIB,
                "elapsed_ms": 1000.0,
                "mbps": num_layers * 100 * MIB / 1e6,
            }
            for stage, (layers, num_layers) in enumerate([([0, 2], 2), ([2, 8], 6)])
        ],
    )
    assert "downloading 50 % of 210 MB, 104.9 MB/s, 1 s left" in done.stderr


def test_a_summary_for_people(tmp_path: Path) -> None:
    hosts = hosts_file(tmp_path, peer_line(), peer_line())
    done = run_cli("fetch", "--hosts", hosts, "--model-id", "org/m")
    assert done.stdout.splitlines()[-1] == (
        "fetched 839 MB; the next run with the same options fetches nothing"
    )
    again = run_cli("fetch", "--hosts", hosts, "--model-id", "org/m", "--cache-dir", "full")
    assert again.stdout.splitlines()[-1] == "nothing to fetch: every stage has its weights"


def test_real_hosts_are_surveyed_from_headers_alone(hub: Hub, model: Path, tmp_path: Path) -> None:
    remote = f"gpu1 python={sys.executable} env.PYTHONPATH={ROOT}"
    hosts = hosts_file(tmp_path, "local", remote)
    ssh = str(ROOT / "tests" / "bin" / "ssh")
    words = ("--hosts", hosts, "--ssh-command", ssh, "--model-id", f"{REPO}@main", "--json")
    done = run_cli("plan", *words)
    got = json.loads(done.stdout)
    stages = got["plan"]["stages"]
    assert done.returncode == 0, done.stderr
    assert (got["model"]["commit"], got["model"]["num_layers"]) == (COMMIT, 6)
    assert [stage["host"] for stage in stages] == ["local", "gpu1"]
    assert [*range(*stages[0]["layers"]), *range(*stages[1]["layers"])] == list(range(6))
    assert len({host["machine"] for host in got["hosts"]}) == 1
    weights_bytes = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    headers_bytes = weights_bytes - got["plan"]["download_bytes"]
    assert 0 < hub.sent_bytes(".safetensors") <= 2 * headers_bytes
