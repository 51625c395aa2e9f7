"""Tensors over HTTP into the store: no byte too many, none twice, several processes at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fetch_child import Case, Nursery, nursery
from tests.support.hub import COMMIT, Hub, serve_hub
from tests.support.hub_faults import Fault
from tests.support.remote import REPO, MemorySource, Remote, held, layered, quiet_meter
from worker.failures import LoadFailed
from worker.weights import filling
from worker.weights.fetch import fetch_tensors
from worker.weights.header import (
    LENGTH_BYTES,
    START_BYTES,
    TensorEntry,
    header_length,
    parse_header,
)
from worker.weights.hub_file import HubFile, HubSource
from worker.weights.ranges import GAP_SHARE, MIB, PIECE_BYTES
from worker.weights.retry import FetchLimits
from worker.weights.store import Store

LIMITS = FetchLimits(first_delay_s=0.01, longest_delay_s=0.05, stall_s=5.0)


@pytest.fixture(scope="module")
def remote() -> Remote:
    """Make six layers, and a large head, over three files."""
    made = layered(6, width=128, files=2)
    made.add("large.safetensors", [("large.weight", "BF16", (5 * MIB,)), ("small", "U8", (3,))])
    return made


@pytest.fixture(scope="module")
def folder(remote: Remote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return remote.write(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def hub(folder: Path, remote: Remote) -> Iterator[Hub]:
    with serve_hub(Hub({REPO: folder}, etags=dict.fromkeys(remote.files, '"e1"'))) as served:
        yield served


@pytest.fixture(scope="module")
def young() -> Iterator[Nursery]:
    with nursery() as running:
        yield running


def layers(start: int, end: int) -> list[str]:
    kinds = ("mlp.weight", "norm.weight")
    return [f"model.layers.{n}.{kind}" for n in range(start, end) for kind in kinds]


def size(remote: Remote, names: list[str]) -> int:
    return sum(len(remote.tensors[name]) for name in names)


def take(
    hub: Hub, root: Path, remote: Remote, names: list[str], limits: FetchLimits = LIMITS
) -> Store:
    """Fetch as a start does: headers of the needed files by range, then the tensors."""
    store = Store.open(root, hub.endpoint, REPO, COMMIT)
    source = HubSource(REPO, COMMIT, hub.endpoint, limits=limits)
    files: dict[str, HubFile] = {}
    entries: dict[str, TensorEntry] = {}
    for name in sorted({remote.entries[name].file for name in names}):
        found = store.header(name)
        if found is None:
            file = source.describe(name)
            start = source.read(file, 0, START_BYTES)
            end = LENGTH_BYTES + header_length(start, Path(name), file.size_bytes)
            raw = start + source.read(file, START_BYTES, end)
            header = parse_header(raw[LENGTH_BYTES:end], Path(name), file.size_bytes)
            store.save_header(file, header)
            found = file, header
        files[name] = found[0]
        entries |= found[1]
    fetch_tensors(
        source,
        store,
        [entries[name] for name in names],
        files,
        meter=quiet_meter(),
        emit=lambda _: None,
        limits=limits,
    )
    return store


def header_bytes(remote: Remote, names: list[str]) -> int:
    files = {remote.entries[name].file for name in names}
    return sum(
        min(e.offset_bytes for e in remote.entries.values() if e.file == file) for file in files
    )


def test_each_stage_is_sent_its_tensors_and_headers_and_the_stages_cover_the_model(
    hub: Hub, remote: Remote, tmp_path: Path
) -> None:
    stages = [
        ["model.embed.weight", *layers(0, 2)],
        layers(2, 4),
        [*layers(4, 6), "model.norm.weight", "lm_head.weight", "large.weight", "small"],
    ]
    got: dict[str, bytes] = {}
    for number, names in enumerate(stages):
        hub.forget()
        got |= held(take(hub, tmp_path / str(number), remote, names), names)
        needed_bytes = size(remote, names) + header_bytes(remote, names)
        assert size(remote, names) <= hub.sent_bytes() <= needed_bytes * 1.01
    assert got == remote.tensors


def test_what_is_here_is_not_asked_for_again(hub: Hub, remote: Remote, tmp_path: Path) -> None:
    take(hub, tmp_path, remote, layers(0, 3))
    hub.forget()
    store = take(hub, tmp_path, remote, layers(1, 3))
    assert hub.asked == []
    assert held(store, layers(1, 3)) == {name: remote.tensors[name] for name in layers(1, 3)}


@pytest.mark.parametrize(
    "fault",
    [
        Fault(skip=3, cut_bytes=100_000, times=3),
        Fault(skip=3, cut_bytes=1, reset=True, times=2),
        Fault(skip=3, status=503, times=4),
        Fault(skip=3, shift_bytes=7),
        Fault(skip=3, drop=True, times=3),
    ],
    ids=["short", "reset", "503", "shifted", "dropped"],
)
def test_through_faults_every_byte_is_right_and_none_is_kept_twice(
    fault: Fault, hub: Hub, remote: Remote, tmp_path: Path
) -> None:
    hub.faults.add(fault)
    names = list(remote.tensors)
    assert held(take(hub, tmp_path, remote, names), names) == remote.tensors


def test_a_refused_fetch_keeps_what_came_and_goes_on_from_there(
    hub: Hub, remote: Remote, tmp_path: Path
) -> None:
    names = ["large.weight"]
    one = FetchLimits(connections=1)
    hub.faults.add(Fault(file="large.safetensors", skip=3, status=404, code="EntryNotFound"))
    with pytest.raises(LoadFailed) as caught:
        take(hub, tmp_path, remote, names, one)
    assert "no file large.safetensors" in caught.value.text
    before_bytes = hub.sent_bytes()
    store = take(hub, tmp_path, remote, names, one)
    assert held(store, names) == {name: remote.tensors[name] for name in names}
    assert before_bytes >= PIECE_BYTES
    assert hub.sent_bytes() == size(remote, names) + header_bytes(remote, names)


def test_one_large_tensor_comes_over_several_connections_at_once(
    folder: Path, remote: Remote, tmp_path: Path
) -> None:
    meet = threading.Barrier(3)

    class MeetingHub(Hub):
        """Lets no body go on before three are being sent."""

        def count(self, file: str, num_bytes: int) -> None:
            super().count(file, num_bytes)
            if not met.is_set() and num_bytes > 100_000:
                meet.wait(timeout=20)
                met.set()

    met = threading.Event()
    with serve_hub(MeetingHub({REPO: folder})) as hub:
        store = take(hub, tmp_path, remote, ["large.weight"], FetchLimits(connections=3))
    assert met.is_set()
    assert held(store, ["large.weight"]) == {"large.weight": remote.tensors["large.weight"]}


def once(hub: Hub, remote: Remote, names: list[str]) -> bool:
    """Whether each of these tensors came once, small gaps between what a process lacked aside."""
    size_bytes = size(remote, names)
    return size_bytes <= hub.sent_bytes() <= size_bytes * (1 + GAP_SHARE)


def test_locks_are_renewed_while_the_hub_says_nothing(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "SYNC_S", 0.01)
    store = Store.open(tmp_path, "http://hub.test", REPO, COMMIT)

    class SlowSource(MemorySource):
        """Says nothing before the lock was renewed twice."""

        def stream(
            self, file: HubFile, start: int, end: int, stop: threading.Event
        ) -> Iterator[bytes]:
            (lock,) = store.locks_folder.iterdir()
            for _ in range(2):
                before_ns = lock.stat().st_mtime_ns
                while lock.stat().st_mtime_ns == before_ns:
                    assert not stop.wait(0.001)
            yield from super().stream(file, start, end, stop)

    fetch_tensors(
        SlowSource(remote.files),
        store,
        [remote.entries["small"]],
        remote.hub_files,
        meter=quiet_meter(),
        emit=lambda _: None,
        limits=LIMITS,
    )
    assert held(store, ["small"]) == {"small": remote.tensors["small"]}


@pytest.fixture
def case(hub: Hub, folder: Path, tmp_path: Path) -> Case:
    os.mkfifo(tmp_path / "come")
    os.mkfifo(tmp_path / "go")
    return Case(
        root=str(tmp_path / "cache"),
        folder=str(folder),
        names=layers(0, 4),
        endpoint=hub.endpoint,
        repo_id=REPO,
        commit=COMMIT,
        in_memory=False,
        gate=(str(tmp_path / "come"), str(tmp_path / "go")),
    )


def with_names(case: Case, names: list[str]) -> Case:
    return replace(case, names=names, gate=None)


def opened(case: Case) -> Store:
    return Store.open(Path(case.root), case.endpoint, case.repo_id, case.commit)


def pass_gate(case: Case) -> None:
    assert case.gate is not None
    Path(case.gate[1]).write_text("go")


def wait_at_gate(case: Case) -> None:
    assert case.gate is not None
    Path(case.gate[0]).read_text()


@pytest.mark.parametrize("second", [(0, 4), (2, 6)], ids=["same", "overlapping"])
def test_two_processes_on_one_store_fetch_every_byte_once(
    second: tuple[int, int], case: Case, young: Nursery, hub: Hub, remote: Remote
) -> None:
    one = young.start(case)
    wait_at_gate(case)
    # The other finds locks held, fetches what is free and waits for the rest.
    two = young.start(with_names(case, layers(*second)))
    own_bytes = size(remote, [n for n in layers(*second) if n not in case.names])
    hub_has_sent(hub, own_bytes)
    pass_gate(case)
    assert (young.wait(one), young.wait(two)) == (0, 0)
    union = sorted({*case.names, *layers(*second)})
    assert once(hub, remote, union)
    assert held(opened(case), union) == {name: remote.tensors[name] for name in union}


def hub_has_sent(hub: Hub, num_bytes: int) -> None:
    """Wait until the hub has sent so much."""
    waiting = threading.Event()
    for _ in range(2000):
        if hub.sent_bytes() >= num_bytes:
            return
        waiting.wait(0.01)
    raise AssertionError(f"the hub has sent {hub.sent_bytes()} of {num_bytes} bytes")


def test_many_processes_at_once_fetch_every_byte_once(
    case: Case, young: Nursery, hub: Hub, remote: Remote
) -> None:
    pids = [young.start(with_names(case, layers(n, n + 3))) for n in (0, 1, 2, 3, 0, 3)]
    assert [young.wait(pid) for pid in pids] == [0] * len(pids)
    assert once(hub, remote, layers(0, 6))
    assert held(opened(case), layers(0, 6)) == {n: remote.tensors[n] for n in layers(0, 6)}


def test_the_death_of_a_holder_lets_the_other_take_over(
    case: Case, young: Nursery, remote: Remote
) -> None:
    one = young.start(case)
    wait_at_gate(case)
    two = young.start(with_names(case, case.names))
    os.kill(one, signal.SIGKILL)
    assert (young.wait(one), young.wait(two)) == (-signal.SIGKILL, 0)
    assert held(opened(case), case.names) == {name: remote.tensors[name] for name in case.names}


def test_a_stopped_holder_is_named_after_a_bounded_wait(
    case: Case, young: Nursery, remote: Remote
) -> None:
    one = young.start(case)
    wait_at_gate(case)
    os.kill(one, signal.SIGSTOP)
    try:
        with pytest.raises(LoadFailed) as caught:
            fetch_tensors(
                MemorySource(remote.files),
                opened(case),
                [remote.entries[name] for name in case.names],
                remote.hub_files,
                meter=quiet_meter(),
                emit=lambda _: None,
                limits=LIMITS,
                patience_s=0.3,
            )
    finally:
        os.kill(one, signal.SIGCONT)
    assert caught.value.text.startswith(f"process {one} is fetching model.layers.")
    assert "shown no sign of life for 0.3 s" in caught.value.text
    pass_gate(case)
    assert young.wait(one) == 0
