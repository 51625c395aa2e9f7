"""Models from a hub: only what a stage needs, from the cache where it is there, else in words."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub import close_session
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file

from tests.support.hub import COMMIT, Hub, serve_hub
from tests.support.hub_faults import Fault
from tests.support.tiny import tiny_checkpoint
from tests.support.tokenizers import byte_tokenizer
from tests.support.worker_process import WorkerProcess
from worker.failures import LoadFailed
from worker.model.load import prepare_stage
from worker.model.load_options import LoadOptions
from worker.protocol.events import DownloadProgress
from worker.protocol.exits import ExitCode
from worker.protocol.stage import StageSlice
from worker.weights.checkpoint import open_checkpoint
from worker.weights.hub_errors import refusal
from worker.weights.progress import DownloadMeter
from worker.weights.repo import ModelFolder, find_model
from worker.weights.retry import FetchLimits

REPO = "org/tiny"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("sharded"), "llama", sharded=True)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def hub(sharded: Path) -> Iterator[Hub]:
    with serve_hub(Hub({REPO: sharded})) as served:
        yield served
    close_session()


Find = Callable[..., ModelFolder]


@pytest.fixture
def find(hub: Hub, tmp_path: Path) -> Find:
    def found(model_id: str = REPO, revision: str | None = None) -> ModelFolder:
        return find_model(model_id, revision, endpoint=hub.endpoint, cache_dir=tmp_path)

    return found


def refused(act: Callable[[], object]) -> LoadFailed:
    with pytest.raises(LoadFailed) as caught:
        act()
    assert "\n" not in caught.value.text
    return caught.value


def needed_files(model: ModelFolder, stage: StageSlice) -> list[str]:
    request = prepare_stage(model.folder, stage, LoadOptions())
    return request.plan.tensors.files(request.index)


def test_a_stage_fetches_the_shards_it_needs_and_no_other(
    hub: Hub, find: Find, sharded: Path
) -> None:
    model = find()
    assert (model.commit, model.folder.name) == (COMMIT, COMMIT)
    assert not list(model.folder.glob("*.safetensors"))
    needed = needed_files(model, StageSlice(2, 4, 6))
    sizes = [(sharded / file).stat().st_size for file in needed]
    assert model.size_bytes(needed) == sum(sizes)
    counted: list[int] = []
    model.fetch(needed, counted.append)
    assert sum(counted) == sum(sizes)
    assert sorted(path.name for path in model.folder.glob("*.safetensors")) == sorted(needed)
    assert len(needed) < len(list(sharded.glob("*.safetensors")))
    assert all((model.folder / f).read_bytes() == (sharded / f).read_bytes() for f in needed)


def test_a_complete_cache_asks_the_hub_nothing(hub: Hub, find: Find) -> None:
    model = find()
    needed = needed_files(model, StageSlice(0, 2, 6))
    model.fetch(needed, lambda num_bytes: None)
    hub.asked.clear()
    again = find()
    again.fetch(needed, lambda num_bytes: None)
    assert (again, again.missing(needed), hub.asked) == (model, [], [])


def test_a_cache_that_another_program_made_is_complete_as_it_is(
    hub: Hub, find: Find, tmp_path: Path
) -> None:
    first = find()
    # such a cache does not record what the model lacks
    (tmp_path / "models--org--tiny" / ".no_exist").rename(tmp_path / "forgotten")
    hub.asked.clear()
    assert (find().folder, hub.asked) == (first.folder, [])


def test_an_interrupted_start_goes_on_where_it_stopped(hub: Hub, find: Find) -> None:
    folder = find().folder
    (folder / "tokenizer.json").unlink()
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    hub.asked.clear()
    assert (find().folder / "tokenizer.json").is_file()
    assert {asked.partition(" ")[2] for asked in hub.asked} == {"tokenizer.json"}


def test_a_hub_that_cannot_be_reached_is_told_from_one_that_refuses() -> None:
    error = LocalEntryNotFoundError("An error happened while trying to locate the file")
    error.__cause__ = ConnectionRefusedError(111, "Connection refused")
    text = refusal(error, REPO, "config.json", None).text
    assert "cannot be reached" in text and "Connection refused" in text and "HTTPS_PROXY" in text
    full = OSError(errno.ENOSPC, "No space left on device")
    assert "the disk is full" in refusal(full, REPO, "model.safetensors", COMMIT).text


def test_a_revision_may_stand_in_the_name(find: Find) -> None:
    assert find(f"{REPO}@{COMMIT}").folder == find(REPO, COMMIT).folder
    error = refused(lambda: find(f"{REPO}@main", "v2"))
    assert error.code is ExitCode.USAGE and "'main'" in error.text and "'v2'" in error.text
    assert "no revision 'nope'" in refused(lambda: find(REPO, "nope")).text


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "GatedRepo", "accept its licence"),
        (401, "RepoNotFound", "HF_TOKEN"),
        (404, "RepoNotFound", "check --model-id"),
        (401, "", "HF_TOKEN"),
        (403, "", "HF_TOKEN"),
    ],
)
def test_a_refusal_says_what_to_do(
    hub: Hub, find: Find, status: int, code: str, words: str
) -> None:
    hub.refusals["org/other"] = (status, code)
    error = refused(lambda: find("org/other"))
    assert error.code is ExitCode.LOAD_FAILED
    assert "org/other" in error.text and words in error.text
    # none of these gets better by asking again
    assert len(hub.asked) <= 2


def test_a_name_that_cannot_be_one_is_refused_without_asking(hub: Hub, find: Find) -> None:
    here = Path.cwd()
    assert refused(lambda: find("a/b/c")).text == (
        f"'a/b/c' is neither an existing folder in {here} nor a hub id such as org/name; check "
        "--model-id"
    )
    folder = f"{here}/nothing-here"
    assert refused(lambda: find("./nothing-here")).text == (
        f"there is no folder {folder}; check --model-id"
    )
    assert hub.asked == []


def test_a_name_that_is_no_folder_and_not_on_the_hub_tells_both(hub: Hub, find: Find) -> None:
    hub.refusals["Smollm"] = (401, "RepoNotFound")
    assert refused(lambda: find("Smollm")).text == (
        f"there is no folder Smollm in {Path.cwd()}, so it was taken for a hub id, and the hub has "
        "no model Smollm, or it is private; check --model-id, or set HF_TOKEN to a token that may "
        "read it"
    )


def test_offline_without_the_file_says_so(find: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused(find).text


def test_a_file_in_place_of_a_folder_is_refused(sharded: Path) -> None:
    assert "is a file" in refused(lambda: find_model(str(sharded / "config.json"))).text


def test_a_local_folder_that_lacks_a_needed_shard_names_it(sharded: Path) -> None:
    model = find_model(str(sharded))
    assert model.missing(["config.json", "model-x.safetensors"]) == ["model-x.safetensors"]
    assert "model-x" in refused(lambda: model.fetch(["model-x.safetensors"], print)).text


def test_progress_is_told_first_last_and_in_between() -> None:
    told: list[DownloadProgress] = []
    meter = DownloadMeter(100, told.append, interval_s=0.001, stage=2)
    with pytest.raises(KeyError), meter:
        meter.add(40)
        while len(told) < 4:
            meter.add(0)
        raise KeyError
    assert told[0].bytes_done == 0 and told[-1].bytes_done == 40
    assert {(event.bytes_total, event.stage_index) for event in told} == {(100, 2)}
    num_told = len(told)
    meter.add(1)
    assert len(told) == num_told


def test_a_worker_fetches_once_and_then_starts_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = tiny_checkpoint(tmp_path / "single", "llama")
    byte_tokenizer().save_pretrained(single)
    with serve_hub(Hub({REPO: single})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        first = start_worker()
        sent_bytes = hub.sent_bytes("model.safetensors")
        hub.asked.clear()
        second = start_worker()
        assert hub.asked == []
    size_bytes, header_bytes = first_half_bytes(single / "model.safetensors")
    assert size_bytes < sent_bytes <= 1.01 * size_bytes + header_bytes
    progress = [event for event in first if event["event"] == "pp_download_progress"]
    assert [event["bytes_done"] for event in (progress[0], progress[-1])] == [0, size_bytes]
    assert {event["bytes_total"] for event in progress} == {size_bytes}
    kinds = [[event["event"] for event in events] for events in (first, second)]
    assert "pp_cache_hit" not in kinds[0] and "model_fetched" in kinds[0]
    assert "pp_cache_hit" in kinds[1] and "pp_download_progress" not in kinds[1]


def first_half_bytes(path: Path) -> tuple[int, int]:
    """Return the bytes of layers 0:3 of 6, embedding and final norm, and those of the header."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    layers = [f"model.layers.{layer}." for layer in range(3)]
    names = ("model.embed_tokens.", "model.norm.", *layers)
    offsets = [
        entry["data_offsets"]
        for name, entry in json.loads(raw[8 : 8 + length]).items()
        if name.startswith(names)
    ]
    return sum(end - begin for begin, end in offsets), 8 + length


def start_worker() -> list[dict[str, Any]]:
    """Start a worker up to its ready line and return its events."""
    with WorkerProcess("--stage=0", "--num-stages=2", f"--model-id={REPO}") as worker:
        worker.ready()
        return [line for line in worker.lines if "event" in line]


def test_a_wrong_path_is_told_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    with WorkerProcess("--stage=0", "--num-stages=2", f"--model-id={tmp_path / 'no'}") as worker:
        worker.event("exiting")
        kinds = [line["event"] for line in worker.lines]
        code = worker.process.wait(10)
    assert (kinds, code) == (["starting", "model_load_failed", "exiting"], 3)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "model.safetensors.index.json"])
def test_a_small_file_that_is_refused_is_not_taken_for_absent(
    hub: Hub, find: Find, file: str
) -> None:
    hub.faults.add(Fault(method="HEAD", file=file, status=403))
    text = refused(find).text
    assert f"the hub refuses {file} of {REPO}@{COMMIT} (HTTP 403)" in text
    assert (find().folder / file).is_file()


def test_where_an_index_and_a_single_file_are_there_the_single_file_counts(
    sharded: Path, tmp_path: Path
) -> None:
    """As for transformers; the answer that there is none is remembered."""
    both = tmp_path / "both"
    shutil.copytree(sharded, both)
    save_file({"only.weight": torch.zeros(1)}, both / "model.safetensors")
    names = []
    with serve_hub(Hub({"org/both": both, REPO: sharded})) as hub:
        for repo_id in ("org/both", REPO):
            for _ in range(2):
                hub.forget()
                model = find_model(repo_id, endpoint=hub.endpoint, cache_dir=tmp_path / "hub")
                checkpoint = open_checkpoint(model, tmp_path, FetchLimits(), lambda _: None)
                names.append((len(checkpoint.index.names) == 1, hub.asked))
    assert [single for single, _ in names] == [True, True, False, False]
    assert names[1][1] == names[3][1] == []


def test_what_this_host_refuses_is_not_blamed_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refused(
        lambda: find_model(REPO, endpoint=hub.endpoint, cache_dir=tmp_path / "file" / "hub")
    )
    assert f"{tmp_path}/file" in error.text and "set HF_HOME" in error.text


def test_a_token_that_no_header_can_hold_is_named_and_not_told(
    find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret\u200b")
    text = refused(find).text
    assert "the token in HF_TOKEN" in text and "secret" not in text
