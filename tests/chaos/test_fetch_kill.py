"""A fetch killed anywhere is gone on with, and what comes of it is what the hub has."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fetch_child import Case, Nursery, nursery
from tests.support.hub import Hub, serve_hub
from tests.support.remote import (
    COMMIT,
    REPO,
    MemorySource,
    Remote,
    held,
    open_store,
    quiet_meter,
)
from worker.weights.fetch import fetch_tensors
from worker.weights.layout import PartLayout, part_key
from worker.weights.ranges import PIECE_BYTES
from worker.weights.retry import FetchLimits
from worker.weights.store import Store

JOURNAL_LINE = re.compile(rb"^(\d{8}) [0-9a-f]{64}\n", re.MULTILINE)


@pytest.fixture(scope="module")
def young() -> Iterator[Nursery]:
    with nursery() as running:
        yield running


@pytest.fixture(scope="module")
def remote() -> Remote:
    """Make a layer and a tensor of two pieces, in two files."""
    made = Remote()
    made.add("a.safetensors", [("layers.0.a", "BF16", (64, 64)), ("layers.0.b", "F32", (9,))])
    made.add("b.safetensors", [("head.weight", "U8", (PIECE_BYTES + 12345,))])
    return made


@pytest.fixture(scope="module")
def folder(remote: Remote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return remote.write(tmp_path_factory.mktemp("hub"))


def kept_bytes(store: Store, remote: Remote) -> int:
    """Count what a killed fetch left: whole parts, and the pieces that their journals name."""
    kept = sum(e.size_bytes for name, e in remote.entries.items() if store.find(name))
    by_key: dict[str, list[str]] = {}
    for name in remote.entries:
        if not store.find(name):
            by_key.setdefault(part_key(name), []).append(name)
    for key, names in by_key.items():
        entries = [remote.entries[name] for name in names]
        layout = PartLayout.of(store.origin, key, entries, remote.hub_files)
        journal = store.parts_folder / f"{layout.name}.journal"
        if journal.exists() and journal.with_suffix(".partial").exists():
            done = {int(found[1]) for found in JOURNAL_LINE.finditer(journal.read_bytes())}
            kept += sum(p.end - p.start for p in layout.pieces(0) if p.index in done)
    return kept


def finish(store: Store, remote: Remote) -> None:
    """Fetch what is lacking and check all: nothing twice, no byte wrong, nothing left over."""
    total_bytes = sum(map(len, remote.tensors.values()))
    lacking_bytes = total_bytes - kept_bytes(store, remote)
    source = MemorySource(remote.files)
    fetch_tensors(
        source,
        store,
        list(remote.entries.values()),
        remote.hub_files,
        meter=quiet_meter(),
        emit=lambda _: None,
        limits=FetchLimits(connections=1),
    )
    assert held(store, list(remote.tensors)) == remote.tensors
    assert source.given_bytes == lacking_bytes
    assert {path.suffix for path in store.parts_folder.iterdir()} == {".safetensors"}


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine has such a place: hundreds of fetches sync to disk."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def test_a_fetch_killed_at_any_step_is_gone_on_with_and_right(
    young: Nursery, remote: Remote, folder: Path, fast_folder: Path
) -> None:
    kill_at = 0
    while True:
        root = fast_folder / str(kill_at)
        case = Case(
            root=str(root),
            folder=str(folder),
            names=list(remote.entries),
            kill_at=kill_at,
            torn=kill_at % 2 == 1,
        )
        code = young.run(case)
        finish(open_store(root), remote)
        shutil.rmtree(root)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kill_at += 1
    assert kill_at > 40


@pytest.mark.parametrize("seed", range(8))
def test_a_fetch_killed_again_and_again_ends_right(
    seed: int, young: Nursery, remote: Remote, folder: Path, fast_folder: Path
) -> None:
    draw = random.Random(seed)
    for _ in range(6):
        case = Case(
            root=str(fast_folder),
            folder=str(folder),
            names=list(remote.entries),
            kill_at=draw.randrange(40),
            torn=draw.random() < 0.5,
        )
        assert young.run(case) in (0, -signal.SIGKILL)
    finish(open_store(fast_folder), remote)


@pytest.mark.parametrize("seed", range(8))
def test_a_fetch_over_http_killed_at_any_byte_is_gone_on_with_and_right(
    seed: int, young: Nursery, remote: Remote, folder: Path, tmp_path: Path
) -> None:
    class KillingHub(Hub):
        """Kills the client when it has been sent so much."""

        def count(self, file: str, num_bytes: int) -> None:
            super().count(file, num_bytes)
            if self.sent_bytes() >= kill_after_bytes:
                known.wait()
                os.kill(pid, signal.SIGKILL)

    kill_after_bytes = random.Random(seed).randrange(1000, 4_200_000)
    known = threading.Event()
    hub = KillingHub(commits={(REPO, COMMIT): folder}, etags=dict.fromkeys(remote.files, '"e1"'))
    with serve_hub(hub):
        pid = young.start(
            Case(
                root=str(tmp_path),
                folder=str(folder),
                names=list(remote.entries),
                endpoint=hub.endpoint,
                in_memory=False,
            )
        )
        known.set()
        assert young.wait(pid) == -signal.SIGKILL
    finish(Store.open(tmp_path, hub.endpoint, REPO, COMMIT), remote)
