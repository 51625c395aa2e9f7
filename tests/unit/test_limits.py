"""What is free is the tightest of the bounds around the process."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from worker.cgroup import cgroup_free_bytes
from worker.model import limits
from worker.model.limits import free_memory


def _cgroup(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def _membership(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "membership"
    path.write_text(text)
    return path


def test_cgroup_v2_counts_every_limited_level_and_dropable_file_pages(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    _cgroup(root / "a", memory__max="1000\n", memory__current="400\n")
    _cgroup(
        root / "a" / "b",
        memory__max="900\n",
        memory__current="700\n",
        memory__stat="anon 100\ninactive_file 50\n",
    )
    _cgroup(root / "a" / "b" / "c", memory__max="max\n", memory__current="600\n")
    free = cgroup_free_bytes(root, _membership(tmp_path, "0::/a/b/c\n"))
    assert free == [250, 600]


def test_cgroup_v1_limit_near_2_to_63_is_no_limit(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    names = {"memory__usage_in_bytes": "300", "memory__stat": "total_inactive_file 20\n"}
    _cgroup(root / "memory", memory__limit_in_bytes="9223372036854771712", **names)
    _cgroup(root / "memory" / "job", memory__limit_in_bytes="1000", **names)
    lines = "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n"
    assert cgroup_free_bytes(root, _membership(tmp_path, lines)) == [720]


def test_cgroup_path_that_a_container_does_not_see_falls_back_to_its_root(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    _cgroup(root, memory__max="1000", memory__current="100")
    assert cgroup_free_bytes(root, _membership(tmp_path, "0::/outside/of/it\n")) == [900]


def test_no_cgroup_means_no_bound(tmp_path: Path) -> None:
    assert cgroup_free_bytes(tmp_path, tmp_path / "absent") == []


def test_given_limit_counts_what_the_process_holds_already() -> None:
    given = psutil.Process().memory_info().rss + (1 << 20)
    free = free_memory("cpu", given)
    assert free.limit.startswith("--memory-limit of ")
    # the process may have grown by a page or shrunk since
    assert free.free_bytes == pytest.approx(1 << 20, abs=1 << 19)


def test_a_limit_below_what_is_held_leaves_nothing() -> None:
    free = free_memory("cpu", 10 << 20)
    assert free.free_bytes == 0
    assert re.fullmatch(r"--memory-limit of 10 MiB, \d+ MiB in use", free.limit)


def test_without_a_given_limit_the_machine_or_its_cgroup_decides() -> None:
    free = free_memory("cpu")
    assert free.limit in ("memory", "cgroup")
    assert 0 < free.free_bytes <= psutil.virtual_memory().total


def test_what_is_held_of_what_is_asked_for_counts_as_free() -> None:
    held_bytes = 5 << 20
    given = psutil.Process().memory_info().rss + (1 << 20)
    free = free_memory("cpu", given, held_bytes=held_bytes)
    assert free.free_bytes == pytest.approx(held_bytes + (1 << 20), abs=1 << 19)
    used_mib = re.search(r", (\d+) MiB in use", free.limit)
    assert used_mib is not None
    assert int(used_mib[1]) == pytest.approx((given - (1 << 20) - held_bytes) / 2**20, abs=2)


@pytest.mark.parametrize("kind", ["memory", "cgroup"])
def test_so_it_does_under_the_bounds_of_the_machine(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound_bytes = 7 << 20
    if kind == "memory":
        found = SimpleNamespace(available=bound_bytes)
        monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: found)
    else:
        monkeypatch.setattr(limits, "cgroup_free_bytes", lambda: [1 << 50, bound_bytes])
    found_free = free_memory("cpu", held_bytes=5 << 20)
    assert (found_free.free_bytes, found_free.limit) == (12 << 20, kind)
