"""The store: what is here is used, what is not exactly that counts as absent."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.remote import (
    COMMIT,
    ENDPOINT,
    REPO,
    MemorySource,
    Remote,
    held,
    layered,
    open_store,
    quiet_meter,
)
from worker.failures import LoadFailed
from worker.protocol.events import (
    CacheEntry,
    CacheOrphanCleaned,
    CacheRemoved,
    CacheVerified,
    DownloadProgress,
    Event,
)
from worker.weights import fetch as fetch_module
from worker.weights.claims import Claims, Patience, most_claims
from worker.weights.fetch import fetch_tensors
from worker.weights.hub_file import HubFile
from worker.weights.inventory import list_models, remove_models, verify_models
from worker.weights.location import cache_root
from worker.weights.progress import DownloadMeter
from worker.weights.ranges import PIECE_BYTES
from worker.weights.retry import FetchLimits
from worker.weights.store import Store, endpoint_name

LIMITS = FetchLimits(connections=2)


@pytest.fixture(scope="module")
def remote() -> Remote:
    return layered(6)


def fetch(
    store: Store,
    remote: Remote,
    names: Iterable[str],
    *,
    source: MemorySource | None = None,
    meter: DownloadMeter | None = None,
) -> tuple[int, list[Event]]:
    """Fetch tensors; return how many bytes that took and what was told."""
    told: list[Event] = []
    source = source or MemorySource(remote.files)
    fetch_tensors(
        source,
        store,
        [remote.entries[name] for name in names],
        remote.hub_files,
        meter=meter or quiet_meter(),
        emit=told.append,
        limits=LIMITS,
    )
    return source.given_bytes, told


def layers(start: int, end: int) -> list[str]:
    kinds = ("mlp.weight", "norm.weight")
    return [f"model.layers.{n}.{kind}" for n in range(start, end) for kind in kinds]


def size(remote: Remote, names: Iterable[str]) -> int:
    return sum(len(remote.tensors[name]) for name in names)


def part_of(store: Store, name: str) -> Path:
    found = store.find(name)
    assert found is not None
    return found


def failing(remote: Remote, after_bytes: int) -> MemorySource:
    error = LoadFailed("the hub is gone")
    return MemorySource(remote.files, chunk_bytes=1000, fail_after_bytes=after_bytes, error=error)


def test_an_empty_store_holds_nothing_and_opening_it_makes_no_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path / "root")
    assert (store.find("x"), store.header("f"), store.parts) == (None, None, [])
    assert not (tmp_path / "root").exists()


def test_what_one_split_fetched_serves_another(remote: Remote, tmp_path: Path) -> None:
    assert fetch(open_store(tmp_path), remote, layers(0, 4))[0] == size(remote, layers(0, 4))
    store = open_store(tmp_path)
    assert fetch(store, remote, layers(2, 6))[0] == size(remote, layers(4, 6))
    assert held(store, layers(0, 6)) == {n: remote.tensors[n] for n in layers(0, 6)}
    assert fetch(open_store(tmp_path), remote, layers(1, 5))[0] == 0


def test_a_group_that_was_fetched_in_part_is_completed(remote: Remote, tmp_path: Path) -> None:
    both = layers(0, 1)
    assert fetch(open_store(tmp_path), remote, both[:1])[0] == size(remote, both[:1])
    assert fetch(open_store(tmp_path), remote, both)[0] == size(remote, both[1:])
    assert held(open_store(tmp_path), both) == {name: remote.tensors[name] for name in both}


def test_two_parts_may_hold_one_tensor(remote: Remote, tmp_path: Path) -> None:
    both = layers(0, 1)
    fetch(open_store(tmp_path / "a"), remote, both[:1])
    fetch(open_store(tmp_path / "b"), remote, both)
    store, other = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    part_of(other, both[0]).rename(store.parts_folder / part_of(other, both[0]).name)
    store.scan()
    assert len(store.parts) == 2
    assert held(store, both) == {name: remote.tensors[name] for name in both}


def test_nothing_of_another_commit_endpoint_or_model_is_used(
    remote: Remote, tmp_path: Path
) -> None:
    fetch(open_store(tmp_path), remote, layers(0, 1))
    name = layers(0, 1)[0]
    assert open_store(tmp_path, commit="d" * 40).find(name) is None
    assert open_store(tmp_path, endpoint="http://hub.test:81").find(name) is None
    assert Store.open(tmp_path, ENDPOINT, "org/other", COMMIT).find(name) is None
    copied = open_store(tmp_path, commit="d" * 40)
    copied.parts_folder.parent.mkdir(parents=True)
    open_store(tmp_path).parts_folder.rename(copied.parts_folder)
    copied.scan()
    assert copied.find(name) is None
    (why,) = copied.refused.values()
    assert f"came from {REPO}@{COMMIT}" in why


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        ("https://huggingface.co", "huggingface.co"),
        ("http://127.0.0.1:8080", "127.0.0.1-8080"),
        ("https://user:secret@mirror.lan/hf/", "mirror.lan-hf"),
        ("http://[::1]:80", "1-80"),
    ],
)
def test_an_endpoint_has_a_folder_without_secrets(endpoint: str, name: str) -> None:
    assert endpoint_name(endpoint) == name


def test_a_tensor_of_another_version_of_its_file_is_fetched_again(tmp_path: Path) -> None:
    remote = layered(1, files=1)
    fetch(open_store(tmp_path), remote, layers(0, 1))
    remote.add("model-00001-of-00001.safetensors", [("model.layers.0.mlp.weight", "U8", (9,))])
    file = remote.hub_files["model-00001-of-00001.safetensors"]
    remote.hub_files[file.name] = HubFile(file.name, file.size_bytes, "e2")
    store, name = open_store(tmp_path), "model.layers.0.mlp.weight"
    store.save_header(remote.hub_files[file.name], {name: remote.entries[name]})
    assert store.find(name) is None
    fetch(store, remote, [name])
    assert held(store, [name]) == {name: remote.tensors[name]}


@pytest.mark.parametrize("damage", [b"", b"short", b"\x08" + bytes(100)], ids=["0", "5", "101"])
def test_a_broken_part_counts_as_absent_is_told_and_fetched_again(
    damage: bytes, remote: Remote, tmp_path: Path
) -> None:
    fetch(open_store(tmp_path), remote, layers(0, 2))
    path = part_of(open_store(tmp_path), layers(0, 1)[0])
    path.write_bytes(damage)
    store = open_store(tmp_path)
    assert store.find(layers(0, 1)[0]) is None
    taken_bytes, told = fetch(store, remote, layers(0, 2))
    assert taken_bytes == size(remote, layers(0, 1))
    broken, cleaned = told
    assert isinstance(broken, CacheVerified) and isinstance(cleaned, CacheOrphanCleaned)
    assert (broken.ok, broken.file, cleaned.file) == (False, path.name, path.name)
    assert broken.reason is not None and str(path) in broken.reason
    assert held(store, layers(0, 2)) == {n: remote.tensors[n] for n in layers(0, 2)}


def test_a_header_is_kept_and_read_back(remote: Remote, tmp_path: Path) -> None:
    file = next(iter(remote.hub_files.values()))
    header = {n: e for n, e in remote.entries.items() if e.file == file.name}
    open_store(tmp_path).save_header(file, header)
    assert open_store(tmp_path).header(file.name) == (file, header)
    assert open_store(tmp_path, commit="d" * 40).header(file.name) is None


@pytest.mark.parametrize("keep_bytes", [0, 10, 70, 400])
def test_a_broken_header_counts_as_absent(keep_bytes: int, remote: Remote, tmp_path: Path) -> None:
    file = next(iter(remote.hub_files.values()))
    store = open_store(tmp_path)
    store.save_header(file, {n: e for n, e in remote.entries.items() if e.file == file.name})
    (path,) = store.headers_folder.iterdir()
    path.write_bytes(path.read_bytes()[:keep_bytes])
    assert open_store(tmp_path).header(file.name) is None
    path.write_bytes(b"\xff\xfe\n\n\n")
    assert open_store(tmp_path).header(file.name) is None


def test_a_failed_fetch_is_gone_on_with_and_only_new_bytes_count_for_the_rate(
    tmp_path: Path,
) -> None:
    remote = Remote()
    remote.add("f.safetensors", [("w", "U8", (3 * PIECE_BYTES,))])
    with pytest.raises(LoadFailed, match="the hub is gone"):
        fetch(open_store(tmp_path), remote, ["w"], source=failing(remote, 10 * 2**20))
    told: list[DownloadProgress] = []
    meter = DownloadMeter(3 * PIECE_BYTES, told.append, interval_s=60, stage=1)
    taken_bytes, _ = fetch(open_store(tmp_path), remote, ["w"], meter=meter)
    assert taken_bytes in (PIECE_BYTES, 2 * PIECE_BYTES)
    first, last = told
    assert (first.bytes_done, last.bytes_done) == (0, 3 * PIECE_BYTES)
    assert last.mbps == pytest.approx(taken_bytes / 1e3 / last.elapsed_ms, rel=0.05)


def unfinished(root: Path, remote: Remote, names: list[str]) -> list[str]:
    """Leave a partial; return the names of what is left."""
    with pytest.raises(LoadFailed):
        fetch(open_store(root), remote, names, source=failing(remote, 1500))
    return [path.name for path in open_store(root).parts_folder.glob("*.partial")]


def test_partials_that_no_fetch_can_use_are_removed_and_others_kept(
    remote: Remote, tmp_path: Path
) -> None:
    (partial,) = unfinished(tmp_path, remote, layers(0, 1))
    _, told = fetch(open_store(tmp_path), remote, layers(1, 2))
    assert told == []  # It can still be gone on with.
    # Both tensors come by other ways.
    for name in layers(0, 1):
        told = fetch(open_store(tmp_path), remote, [name])[1]
    (cleaned,) = told
    assert isinstance(cleaned, CacheOrphanCleaned) and cleaned.file == partial
    assert {p.suffix for p in open_store(tmp_path).parts_folder.iterdir()} == {".safetensors"}


def test_a_partial_of_another_version_of_the_file_is_removed(
    remote: Remote, tmp_path: Path
) -> None:
    (partial,) = unfinished(tmp_path, remote, layers(0, 1))
    changed = {f.name: HubFile(f.name, f.size_bytes, "e2") for f in remote.hub_files.values()}
    newer = Remote(remote.files, changed, remote.entries, remote.tensors)
    taken_bytes, told = fetch(open_store(tmp_path), newer, layers(0, 1))
    assert [event.file for event in told if isinstance(event, CacheOrphanCleaned)] == [partial]
    assert taken_bytes == size(remote, layers(0, 1))


def test_left_over_files_without_use_are_removed(remote: Remote, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fetch(store, remote, layers(0, 1))
    file = next(iter(remote.hub_files.values()))
    store.save_header(file, {})
    left = [
        store.parts_folder / "a-00000000.partial",
        store.parts_folder / "b-00000000.journal",
        store.headers_folder / "f.json.1.tmp",
    ]
    for path in left:
        path.write_bytes(b"{}\n")
    fresh = store.headers_folder / "g.json.2.tmp"
    fresh.write_bytes(b"somebody writes this now")
    long_ago = time.time_ns() - 7200 * 10**9
    os.utime(left[2], ns=(long_ago, long_ago))
    _, told = fetch(store, remote, layers(1, 2))
    assert [e.file for e in told if isinstance(e, CacheOrphanCleaned)] == [p.name for p in left]
    assert fresh.exists() and not any(path.exists() for path in left)


def test_a_silent_holder_is_named_and_one_that_renews_is_waited_for(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with Claims(store) as claims, Claims(store) as others:
        assert claims.take("k") and not others.take("k")
        patience = Patience(store, 0.0)
        patience.wait(["k"])
        claims.renew()
        patience.wait(["k"])
        with pytest.raises(LoadFailed) as caught:
            patience.wait(["k"])
        assert f"process {os.getpid()} is fetching k of {REPO}" in caught.value.text
    with Claims(store) as claims:
        assert claims.take("k")


def told_by(act: object, *args: object, **kwargs: object) -> list[Event]:
    told: list[Event] = []
    act(*args[:1], told.append, *args[1:], **kwargs)  # type: ignore[operator]
    return told


def test_the_list_names_layers_groups_and_sizes(remote: Remote, tmp_path: Path) -> None:
    fetch(open_store(tmp_path), remote, [*layers(0, 2), *layers(4, 5), "model.embed.weight"])
    unfinished(tmp_path, remote, layers(5, 6))
    (entry,) = told_by(list_models, tmp_path)
    assert isinstance(entry, CacheEntry)
    assert (entry.model_id, entry.commit, entry.endpoint) == (REPO, COMMIT, ENDPOINT)
    assert (entry.layers, entry.groups) == ("0:2 4:5", ("model.embed.weight",))
    least_bytes = size(remote, [*layers(0, 2), *layers(4, 5), "model.embed.weight"])
    assert least_bytes < entry.size_bytes < least_bytes + 64 * 1024
    assert entry.partial_bytes > size(remote, layers(5, 6))
    assert told_by(list_models, tmp_path, model_id="org/other") == []
    assert told_by(list_models, tmp_path / "none") == []


def test_opening_for_use_is_the_last_use_and_listing_is_not(remote: Remote, tmp_path: Path) -> None:
    fetch(open_store(tmp_path), remote, layers(0, 1))
    os.utime(open_store(tmp_path).folder, (1000, 1000))
    (entry,) = told_by(list_models, tmp_path)
    assert isinstance(entry, CacheEntry) and entry.used_ms == 1000e3
    open_store(tmp_path)
    (entry,) = told_by(list_models, tmp_path)
    assert isinstance(entry, CacheEntry) and entry.used_ms > 1000e3


def test_verify_finds_the_broken_part_and_repair_removes_it(remote: Remote, tmp_path: Path) -> None:
    fetch(open_store(tmp_path), remote, layers(0, 3))
    path = part_of(open_store(tmp_path), layers(1, 2)[0])
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    told = told_by(verify_models, tmp_path)
    assert [(e.ok, e.file == path.name) for e in told if isinstance(e, CacheVerified)] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert path.exists()
    told_by(verify_models, tmp_path, model_id=REPO, commit=COMMIT[:8], repair=True)
    assert not path.exists()
    assert fetch(open_store(tmp_path), remote, layers(0, 3))[0] == size(remote, layers(1, 2))
    told = told_by(verify_models, tmp_path)
    assert [e.ok for e in told if isinstance(e, CacheVerified)] == [True] * 3


def test_remove_frees_one_model_and_leaves_others(remote: Remote, tmp_path: Path) -> None:
    fetch(open_store(tmp_path), remote, layers(0, 2))
    fetch(open_store(tmp_path, commit="d" * 40), remote, layers(0, 1))
    (removed,) = told_by(remove_models, tmp_path, model_id=REPO, commit=COMMIT)
    assert isinstance(removed, CacheRemoved)
    assert (removed.commit, removed.kept) == (COMMIT, None)
    assert removed.bytes_freed >= size(remote, layers(0, 2))
    assert not open_store(tmp_path).folder.exists()
    assert open_store(tmp_path, commit="d" * 40).find(layers(0, 1)[0]) is not None
    told_by(remove_models, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_being_fetched_is_not_removed(remote: Remote, tmp_path: Path) -> None:
    fetch(open_store(tmp_path), remote, layers(0, 2))
    store = open_store(tmp_path)
    with Claims(store) as claims:
        assert claims.take("model.layers.0")
        (removed,) = told_by(remove_models, tmp_path)
    assert isinstance(removed, CacheRemoved) and removed.kept is not None
    assert removed.kept.startswith(f"model.layers.0 of {REPO} is being fetched by process ")
    store.scan()
    assert store.find(layers(0, 1)[0]) is not None and store.find(layers(1, 2)[0]) is None


def test_events_can_be_told_as_json(remote: Remote, tmp_path: Path) -> None:
    fetch(open_store(tmp_path), remote, layers(0, 1))
    for act in (list_models, verify_models, remove_models):
        assert json.dumps([event.__dict__ for event in told_by(act, tmp_path)])


def test_more_groups_than_locks_may_be_open_are_fetched_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "most_claims", lambda: 2)
    remote = layered(5)
    taken_bytes, _ = fetch(open_store(tmp_path), remote, remote.tensors)
    assert taken_bytes == size(remote, remote.tensors)
    assert held(open_store(tmp_path), list(remote.tensors)) == remote.tensors


def test_no_more_locks_are_held_than_leave_files_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    held_at = []
    for limit in (64, 256, 1024, 1 << 20, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _kind, limit=limit: (limit, limit))
        held_at.append(most_claims())
    assert held_at == [1, 48, 240, 256, 256]


def test_a_password_in_the_endpoint_is_kept_nowhere(remote: Remote, tmp_path: Path) -> None:
    store = open_store(tmp_path, endpoint="https://user:secret@mirror.lan/hf/")
    for file in remote.hub_files.values():
        store.save_header(file, {})
    fetch(store, remote, layers(0, 1))
    told = [*told_by(list_models, tmp_path), *told_by(verify_models, tmp_path)]
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert "secret" not in str(told) and not any(b"secret" in content for content in kept)
    assert [event.endpoint for event in told if isinstance(event, CacheEntry)] == [
        "https://mirror.lan/hf"
    ]


def test_a_model_id_is_no_pattern(remote: Remote, tmp_path: Path) -> None:
    fetch(open_store(tmp_path), remote, layers(0, 1))
    assert told_by(remove_models, tmp_path, model_id="*/*") == []


def test_a_folder_of_parts_that_is_removed_before_the_lock_is_taken_is_made_again(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes the model, of which nothing is here yet, as this one begins."""
    store, take = open_store(tmp_path), Claims.take

    def removed_first(claims: Claims, key: str) -> bool:
        monkeypatch.setattr(Claims, "take", take)
        shutil.rmtree(tmp_path, ignore_errors=True)
        return take(claims, key)

    monkeypatch.setattr(Claims, "take", removed_first)
    fetch(store, remote, layers(0, 1))
    assert held(store, layers(0, 1)).keys() == set(layers(0, 1))


def test_a_cache_folder_of_nobody_is_refused_in_words() -> None:
    with pytest.raises(LoadFailed, match="no home folder for ~nobody-here"):
        cache_root(Path("~nobody-here/cache"))


@pytest.mark.parametrize("act", [list_models, verify_models, remove_models])
def test_a_cache_that_cannot_be_read_is_not_an_empty_one(act: object, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadFailed, match=r"file cannot be read \(Not a directory\)"):
        told_by(act, tmp_path / "file")
    assert told_by(act, tmp_path / "nothing") == []
