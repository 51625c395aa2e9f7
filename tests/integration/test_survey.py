"""A worker that only surveys tells what its host offers and what a model costs, and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session

from tests.support.hub import COMMIT, Hub, serve_hub
from tests.support.tiny import tiny_checkpoint
from tests.support.worker_process import Line, WorkerProcess
from worker.backends.transformers.host import cached_files, machine_id
from worker.protocol.costs import ModelCosts, RoleCost
from worker.protocol.exits import ExitCode
from worker.weights.header import read_header
from worker.weights.index import CheckpointIndex

REPO = "org/tiny"
LAYERS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("survey"), "llama", sharded=True)


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub for workers, which start with an empty cache."""
    with serve_hub(Hub({REPO: folder})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield served
    close_session()


def errand(*args: str) -> tuple[int, dict[str, Line], str]:
    """Run a worker to its end: exit code, the last event of each kind, stderr."""
    with WorkerProcess("--threads", "1", *args) as worker:
        code = worker.end(deadline_s=100)
        return code, {line["event"]: line for line in worker.lines}, worker.stderr_text()


def test_a_host_alone_is_surveyed_without_a_model(tmp_path: Path) -> None:
    cache = tmp_path / "not" / "there"
    code, events, _ = errand("--only", "survey", "--cache-dir", str(cache), "--device", "cpu")
    host = events["host_surveyed"]
    assert (code, events["exiting"]["code"], "model_surveyed" in events) == (0, 0, False)
    assert {name: host[name] for name in ("device", "threads", "machine", "cache_path")} == {
        "device": "cpu",
        "threads": 1,
        "machine": machine_id(),
        "cache_path": str(cache),
    }
    assert "cpu" in host["devices"]
    assert 100e6 < host["resident_bytes"] < host["total_bytes"]
    assert 0 < host["free_bytes"] <= host["total_bytes"]
    assert host["read_gbps"] > 0
    assert host["disk_free_bytes"] > 0


def test_a_folder_is_surveyed_from_its_headers(folder: Path) -> None:
    code, events, _ = errand(
        *("--only", "survey", "--model-id", str(folder)),
        *("--max-context", "96", "--prefill-chunk", "32"),
    )
    model = events["model_surveyed"]
    costs = ModelCosts.from_fields(model["costs"])
    index = CheckpointIndex.read(folder)
    total_bytes = sum(index.entry(name).size_bytes for name in index.names)
    shown = ("model_id", "model_type", "max_context", "prefill_chunk", "fetched_bytes")
    assert [code, *(model[name] for name in shown)] == [0, str(folder), "llama", 96, 32, 0]
    assert "commit" not in model
    kinds = {"bfloat16", "int8", "nf4", "int8-weight", "int4-weight"}
    assert (costs.num_layers, set(costs.quantizations)) == (LAYERS, kinds)
    assert sum(group.size_bytes for group in costs.groups.values()) == total_bytes


def test_of_a_hub_model_headers_alone_are_fetched_and_what_is_here_is_told(
    hub: Hub, folder: Path
) -> None:
    survey = ("--only", "survey", "--model-id", REPO)
    code, events, _ = errand(*survey)
    model = events["model_surveyed"]
    headers_bytes = sum(
        min(entry.offset_bytes for entry in read_header(path).values())
        for path in folder.glob("*.safetensors")
    )
    assert (code, model["commit"], events["host_surveyed"]["cached_groups"]) == (0, COMMIT, {})
    # the start of a file is asked for in one piece, of a size that holds most headers
    assert headers_bytes <= model["fetched_bytes"] == hub.sent_bytes(".safetensors")
    fetched, _, _ = errand(
        *("--only", "fetch", "--model-id", REPO, "--shard-start", "2", "--shard-end", "4")
    )
    hub.forget()
    code, events, _ = errand(*survey)
    here = events["host_surveyed"]["cached_groups"]
    assert (fetched, code, here) == (
        0,
        0,
        {COMMIT: ["model.layers.2", "model.layers.3", "model.norm.weight"]},
    )
    assert (events["model_surveyed"]["fetched_bytes"], hub.sent_bytes(".safetensors")) == (0, 0)


def test_files_that_the_hub_client_has_whole_are_told_by_commit(
    tmp_path: Path, folder: Path
) -> None:
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model-00001-of-00002.safetensors").write_bytes(b"x")
    # a link to nothing: a download that was begun
    (snapshot / "model-00002-of-00002.safetensors").symlink_to(tmp_path / "absent")
    found = {
        model_id: cached_files(tmp_path, model_id)
        for model_id in (REPO, f"{REPO}@main", "org/other", str(folder), None)
    }
    here = {COMMIT: ["model-00001-of-00002.safetensors"]}
    assert found == {REPO: here, f"{REPO}@main": here, "org/other": {}, str(folder): {}, None: {}}


def test_where_the_model_cannot_be_had_the_host_is_told_of_all_the_same(hub: Hub) -> None:
    code, events, stderr = errand("--only", "survey", "--model-id", "org/absent")
    assert code == ExitCode.LOAD_FAILED
    assert "host_surveyed" in events
    assert "org/absent" in events["model_load_failed"]["error"]
    assert events["model_load_failed"]["error"] in stderr


def test_the_machine_has_a_name_where_there_is_no_boot_id(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("an-id\n")
    found = (machine_id(tmp_path / "boot_id"), machine_id(tmp_path / "absent") != "")
    assert found == ("an-id", True)


CONTEXT, CHUNK = 1024, 256
SIZES = ("--max-context", str(CONTEXT), "--prefill-chunk", str(CHUNK))
TOLERANCE = 0.10


@pytest.fixture(scope="module")
def demo_survey(demo_model_path: Path) -> dict[str, Line]:
    return errand("--only", "survey", "--model-id", str(demo_model_path), *SIZES)[1]


@pytest.mark.slow
@pytest.mark.demo_model
@pytest.mark.parametrize("quantization", ["bfloat16", "nf4", "int4-weight"])
def test_a_survey_predicts_the_memory_of_real_workers_within_10_percent(
    demo_model_path: Path, demo_survey: dict[str, Line], quantization: str
) -> None:
    costs = ModelCosts.from_fields(demo_survey["model_surveyed"]["costs"])
    resident_bytes = demo_survey["host_surveyed"]["resident_bytes"]
    cost, half = costs.quantizations[quantization], costs.num_layers // 2
    wanted = []
    for role, own in ((cost.first, slice(0, half)), (cost.last, slice(half, None))):
        weights_bytes = sum(cost.layer_weights_bytes[own]) + role.weights_bytes
        need_bytes = weights_bytes + _extra_bytes(role, sum(costs.layer_kv_bytes[own]))
        wanted.append(resident_bytes + need_bytes)
    model = ("--model-id", str(demo_model_path), "--quantization", quantization, "--threads", "1")
    measured = _peaks_of_two_stages(*model, *SIZES)
    errors = [a / b - 1 for a, b in zip(wanted, measured, strict=True)]
    assert max(map(abs, errors)) <= TOLERANCE, (errors, wanted, measured)


def _extra_bytes(role: RoleCost, kv_bytes: int) -> int:
    return max(kv_bytes + role.running_bytes, role.loading_bytes) + role.process_bytes


def _peaks_of_two_stages(*args: str) -> list[int]:
    """Fill the whole context of two workers; return the most that each held resident."""
    first = WorkerProcess(*args, "--stage", "0", "--num-stages", "2")
    second = WorkerProcess(*args, "--stage", "1", "--num-stages", "2")
    with first, second:
        for worker in (first, second):
            worker.until(lambda line: line.get("status") == "ready", 100)
        for start in range(0, CONTEXT, CHUNK):
            # all over the vocabulary: mapped rows become resident as their tokens come
            tokens = [48 * (start + i) for i in range(CHUNK)]
            at: dict[str, Any] = {"request_id": "r", "position": start}
            hidden = _reply(first, op="embed_and_forward", tokens=tokens, **at)["hidden_b64"]
            _reply(second, op="forward_and_sample", hidden_b64=hidden, seq_len=CHUNK, **at)
        return [_peak_bytes(worker.process.pid) for worker in (first, second)]


def _reply(worker: WorkerProcess, **request: Any) -> Line:
    worker.send(request)
    reply = worker.reply(100)
    assert "error" not in reply
    return reply


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM in /proc: this test needs Linux")
