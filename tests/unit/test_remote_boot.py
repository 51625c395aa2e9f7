"""Shipped code on its host: kept by its digest, whole or not at all, and not for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.specs import StageSpec
from orchestrator.transport.remote_boot import KEEP_S, is_whole, kept, prune
from orchestrator.transport.shipping import (
    Archive,
    BootLine,
    boot_arguments,
    read_boot_line,
    worker_archive,
)

OTHER = "0" * 64


@pytest.fixture(scope="module")
def code() -> Archive:
    return worker_archive()


def test_it_is_kept_under_its_digest_and_nothing_else(code: Archive, tmp_path: Path) -> None:
    folder = kept(tmp_path / "code", code.data, code.digest)
    assert folder is not None
    assert ([path.name for path in folder.parent.iterdir()], is_whole(folder, code.digest)) == (
        [code.digest],
        True,
    )


def test_many_at_once_publish_one_folder(code: Archive, tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        folders = list(pool.map(lambda _: kept(tmp_path, code.data, code.digest), range(6)))
    assert folders == [tmp_path / code.digest] * 6
    assert [path.name for path in tmp_path.iterdir()] == [code.digest]


@pytest.mark.parametrize("broken", ["worker/cli.py", "code.zip"])
def test_a_damaged_copy_is_not_used_and_is_replaced(
    code: Archive, tmp_path: Path, broken: str
) -> None:
    folder = kept(tmp_path, code.data, code.digest)
    assert folder is not None
    (folder / broken).write_bytes(b"")
    before = is_whole(folder, code.digest)
    assert (before, kept(tmp_path, code.data, code.digest)) == (False, folder)
    assert (is_whole(folder, code.digest), len(list(tmp_path.iterdir()))) == (True, 1)


def test_a_copy_with_a_module_beside_it_is_not_used(code: Archive, tmp_path: Path) -> None:
    folder = kept(tmp_path, code.data, code.digest)
    assert folder is not None
    (folder / "random.py").write_text("raise SystemExit(99)")
    assert not is_whole(folder, code.digest)


def test_code_that_others_could_write_is_not_used(code: Archive, tmp_path: Path) -> None:
    root = tmp_path / "stageline" / "code"
    kept(root, code.data, code.digest)
    root.chmod(0o777)
    process = start("--version", XDG_CACHE_HOME=str(tmp_path))
    stdout, _ = process.communicate(code.data, 30)
    told = (process.returncode, b" need " in stdout, b"stageline worker" in stdout)
    assert (told, kept(root, code.data, code.digest)) == ((0, True, True), None)


def test_where_nothing_can_be_written_nothing_is_kept(code: Archive) -> None:
    assert kept(Path("/proc/no/such"), code.data, code.digest) is None


def test_versions_that_were_not_started_for_long_are_removed(tmp_path: Path) -> None:
    old_s = time.time_ns() / 1e9 - KEEP_S - 60
    for name, is_old in (("a" * 64, True), ("b" * 64, False), (OTHER, True), (".new-x", True)):
        (tmp_path / name).mkdir()
        if is_old:
            os.utime(tmp_path / name, (old_s, old_s))
    prune(tmp_path, OTHER)
    assert sorted(path.name for path in tmp_path.iterdir()) == [OTHER, "b" * 64]


def test_the_same_package_gives_the_same_digest() -> None:
    text = "from orchestrator.transport.shipping import worker_archive as a; print(a().digest)"
    again = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, text=True)
    assert again.stdout.strip() == worker_archive.__wrapped__().digest


def test_a_process_list_shows_first_what_it_is() -> None:
    spec = StageSpec(stage=1, num_stages=3, transport="command", command=("sh",), python="py")
    argv = spec.launch("n").argv
    assert argv[argv.index("-c") + 1].startswith('"stageline worker, stage 1 of 3";import sys;')


def start(*words: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *boot_arguments("NONCE", words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        cwd=environment.get("PWD"),
    )


def test_it_runs_from_a_temporary_folder_that_goes_with_it(code: Archive, tmp_path: Path) -> None:
    process = start(
        *("--stub", "--stage=0", "--num-stages=1", "--nonce=NONCE"),
        XDG_CACHE_HOME="/proc/no/such",
        TMPDIR=str(tmp_path),
    )
    stdout, stderr = process.communicate(code.data, 30)
    assert (process.returncode, b'"reason":"stdin_eof"' in stdout) == (0, True), stderr
    deadline_s = time.monotonic() + 10
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline_s, "the temporary folder stays"
        time.sleep(0.01)  # the process that removes it is nobody's child any more


def test_modules_in_the_current_folder_are_not_imported(code: Archive, tmp_path: Path) -> None:
    for name in ("worker", "zlib", "hashlib", "zipfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    process = start("--version", XDG_CACHE_HOME=str(tmp_path / "cache"), PWD=str(tmp_path))
    stdout, _ = process.communicate(code.data, 30)
    assert (process.returncode, b"stageline worker" in stdout) == (0, True)


@pytest.mark.parametrize(
    ("sent", "line"), [(0, b"eof 0"), (10, b"eof 10"), (-1, b"failed the code arrived damaged")]
)
def test_code_that_does_not_arrive_whole_is_not_run(
    code: Archive, tmp_path: Path, sent: int, line: bytes
) -> None:
    data = code.data[:sent] if sent >= 0 else b"x" + code.data[1:]
    process = start(XDG_CACHE_HOME=str(tmp_path))
    stdout, _ = process.communicate(data, 30)
    assert (process.returncode, stdout.endswith(b"-boot NONCE " + line + b"\n")) == (70, True)
    assert not (tmp_path / "stageline").exists()


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (b"glued noise stageline-boot N1 need 3.11.2\r\n", BootLine("need", "3.11.2")),
        (b"stageline-boot N1 eof 0\n", BootLine("eof", "0")),
        (b"stageline-boot N2 need 3.11.2\n", None),
        (b"stageline-boot N1 surprise\n", None),
        (b"stageline-boot N1\n", None),
    ],
)
def test_a_line_of_the_start_is_known_by_its_nonce(line: bytes, read: BootLine | None) -> None:
    assert read_boot_line(line, "N1") == read
