"""A worker whose model is on a hub: what it fetches, what it uses as it is, what it says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, hf_hub_download

from tests.support.hub import COMMIT, Hub, serve_hub
from tests.support.hub_faults import Fault, Faults
from tests.support.tiny import tiny_checkpoint
from tests.support.tokenizers import byte_tokenizer
from tests.support.worker_process import WorkerProcess

REPO = "org/tiny"
FIRST = ("--stage=0", "--num-stages=2", f"--model-id={REPO}")
LAST = ("--stage=1", "--num-stages=2", f"--model-id={REPO}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", "llama")
    byte_tokenizer().save_pretrained(folder)
    return folder


def empty_home(home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("HF_HOME", str(home))
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "STAGELINE_CACHE", "HTTP_PROXY", "NO_PROXY"):
        patch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    empty_home(tmp_path / "home", monkeypatch)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def site(model: Path) -> Iterator[Hub]:
    """One address for all tests: what is kept of a model is kept by where it came from."""
    with serve_hub(Hub()) as served:
        yield served


@pytest.fixture
def hub(site: Hub, model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub as if it were new."""
    site.models, site.commits, site.faults = {REPO: model}, {}, Faults()
    site.forget()
    monkeypatch.setenv("HF_ENDPOINT", site.endpoint)
    yield site
    close_session()


@pytest.fixture(scope="module")
def begun(
    site: Hub, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Any]]:
    """The cache that a first start of the first stage leaves, and that worker's lines."""
    kept = tmp_path_factory.mktemp("begun") / "home"
    site.models = {REPO: model}
    with pytest.MonkeyPatch.context() as patch:
        empty_home(kept, patch)
        patch.setenv("HF_ENDPOINT", site.endpoint)
        return kept, serve(*FIRST)


@pytest.fixture
def filled(begun: tuple[Path, list[Any]], home: Path) -> None:
    """Begin with what that start has left."""
    shutil.copytree(begun[0], home, symlinks=True)


def serve(*args: str) -> list[dict[str, Any]]:
    """Start a worker up to its ready line, end it, and return its lines."""
    with WorkerProcess(*args) as worker:
        worker.ready()
        worker.stdin.close()
        assert worker.end() == 0
        return list(worker.lines)


def ready_line(lines: list[dict[str, Any]]) -> dict[str, Any]:
    (ready,) = [line for line in lines if line.get("status") == "ready"]
    return ready


def kinds(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines if "event" in line]


def fail(*args: str) -> tuple[int, str, list[str]]:
    """Return exit code, sentence and event kinds of a worker that cannot start."""
    with WorkerProcess(*args) as worker:
        worker.event("exiting")
        code = worker.process.wait(20)
        (failed,) = [line for line in worker.lines if line.get("event") == "model_load_failed"]
        return code, failed["error"], kinds(list(worker.lines))


def parts(home: Path) -> list[Path]:
    return sorted((home / "stageline").rglob("*.safetensors"))


def test_the_ready_line_names_the_commit(begun: tuple[Path, list[Any]]) -> None:
    ready = ready_line(begun[1])
    assert ready["commit"] == COMMIT


def test_memory_is_checked_before_anything_is_fetched(hub: Hub) -> None:
    code, text, seen = fail(*FIRST, "--memory-limit=1MiB")
    assert (code, "memory_check" in seen, "model_fetched" in seen) == (4, True, False)
    header = int.from_bytes((hub.models[REPO] / "model.safetensors").read_bytes()[:8], "little")
    assert hub.sent_bytes("model.safetensors") == 8 + header
    assert "--memory-limit of 1 MiB" in text


def test_a_model_without_safetensors_is_refused(hub: Hub, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pickle"
    shutil.copytree(model, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    hub.models["org/pickle"] = folder
    code, text, seen = fail("--stage=0", "--num-stages=2", "--model-id=org/pickle")
    assert (code, "pp_download_failed" in seen) == (3, True)
    assert text.startswith(f"org/pickle@{COMMIT[:8]} holds no SafeTensors weights")


def test_what_the_hubs_own_cache_holds_whole_is_used_as_it_is(hub: Hub, home: Path) -> None:
    for path in hub.models[REPO].iterdir():
        hf_hub_download(REPO, path.name, endpoint=hub.endpoint, cache_dir=home / "hub")
    hub.forget()
    lines = serve(*FIRST)
    assert ("pp_cache_hit" in kinds(lines), parts(home), hub.asked) == (True, [], [])


def test_a_hub_without_ranges_is_served_only_when_whole_files_are_asked_for(
    hub: Hub, home: Path
) -> None:
    hub.faults.add(Fault(file="model.safetensors", method="GET", whole=True, times=1000))
    code, text, seen = fail(*FIRST)
    assert (code, "pp_download_failed" in seen, "--whole-files" in text) == (3, True, True)
    lines = serve(*FIRST, "--whole-files")
    assert "model_fetched" in kinds(lines) and parts(home) == []
    size_bytes = (hub.models[REPO] / "model.safetensors").stat().st_size
    progress = [line for line in lines if line.get("event") == "pp_download_progress"]
    assert (progress[-1]["bytes_done"], progress[-1]["bytes_total"]) == (size_bytes, size_bytes)
    assert "pp_cache_hit" not in kinds(lines)
    hub.forget()
    assert "pp_cache_hit" in kinds(serve(*LAST)) and hub.asked == []
    blobs = [path for path in (home / "hub").rglob("blobs/*") if path.stat().st_size == size_bytes]
    assert len(blobs) == 1


@pytest.mark.usefixtures("filled")
def test_offline_with_the_whole_slice_starts_and_with_a_part_of_it_names_what_lacks(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "pp_cache_hit" in kinds(serve(*FIRST))
    code, text, seen = fail(*LAST)
    assert (code, hub.asked, "pp_download_failed" in seen) == (3, [], True)
    assert "more tensors" in text and "HF_HUB_OFFLINE" in text and "MB)" in text


@pytest.mark.usefixtures("filled")
def test_another_split_fetches_only_what_is_not_here(hub: Hub, model: Path) -> None:
    serve("--shard-start=1", "--shard-end=4", f"--model-id={REPO}")
    raw = (model / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    layer_bytes = sum(
        entry["data_offsets"][1] - entry["data_offsets"][0]
        for name, entry in json.loads(raw[8 : 8 + length]).items()
        if name.startswith("model.layers.3.")
    )
    sent_bytes = hub.sent_bytes("model.safetensors")
    assert layer_bytes <= sent_bytes <= 1.01 * layer_bytes


@pytest.mark.usefixtures("filled")
def test_another_revision_is_another_model(hub: Hub, tmp_path: Path) -> None:
    other = "f" * 40
    changed = tiny_checkpoint(tmp_path / "changed", "llama", seed=7)
    byte_tokenizer().save_pretrained(changed)
    hub.commits[REPO, other] = changed
    ready = ready_line(serve(*FIRST, f"--revision={other}"))
    assert ready["commit"] == other
    assert hub.sent_bytes("model.safetensors") > 100_000


def test_a_proxy_is_used_where_the_environment_names_one(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    monkeypatch.setenv("http_proxy", hub.endpoint)
    assert "model_fetched" in kinds(serve(*FIRST))


def test_code_of_a_trusted_model_comes_from_the_hub(hub: Hub, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own-code"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own_llama",
        "auto_map": {
            "AutoConfig": "configuration_own.OwnConfig",
            "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_own.py").write_text(
        "from transformers import LlamaConfig\n\n\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own_llama'\n"
    )
    (folder / "modeling_own.py").write_text(
        "from transformers import LlamaForCausalLM\n\n"
        "from .configuration_own import OwnConfig\n\n\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    hub.models["org/own"] = folder
    args = ("--stage=0", "--num-stages=2", "--model-id=org/own")
    assert "--trust-remote-code" in fail(*args)[1]
    ready = ready_line(serve(*args, "--trust-remote-code"))
    assert ready["model_type"] == "own_llama"
