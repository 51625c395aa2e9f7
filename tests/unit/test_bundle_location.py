"""The newest bundles are kept, and nothing that is no bundle is touched."""

from __future__ import annotations

from pathlib import Path

from orchestrator.bundle.location import bundles_in, fresh_path, prune

DAY_NS = 86_400 * 10**9
NOW_NS = 1_800_000_000 * 10**9


def bundle(folder: Path, at_ns: int, *, ended: bool = True) -> Path:
    path = fresh_path(folder, at_ns)
    path.mkdir()
    if ended:
        (path / "end.json").write_text("{}")
    return path


def test_names_sort_by_time_and_differ_within_a_second(tmp_path: Path) -> None:
    paths = [fresh_path(tmp_path, NOW_NS + second * 10**9) for second in (0, 1, 61)]
    assert sorted(paths) == paths
    assert fresh_path(tmp_path, NOW_NS) != fresh_path(tmp_path, NOW_NS)


def test_only_the_newest_stay(tmp_path: Path) -> None:
    paths = [bundle(tmp_path, NOW_NS - day * DAY_NS) for day in range(5, 0, -1)]
    assert prune(tmp_path, NOW_NS, kept=2) == tuple(paths[:3])
    assert bundles_in(tmp_path) == tuple(paths[3:])


def test_a_run_without_an_end_stays_for_a_week(tmp_path: Path) -> None:
    paths = [bundle(tmp_path, NOW_NS - day * DAY_NS, ended=False) for day in (8, 6, 0)]
    assert prune(tmp_path, NOW_NS, kept=1) == (paths[0],)


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "20270115T080000Z-abcd").symlink_to(tmp_path / "notes")
    assert (prune(tmp_path, NOW_NS, kept=0), bundles_in(tmp_path / "none")) == ((), ())
    assert (tmp_path / "notes").is_dir()
