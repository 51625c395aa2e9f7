"""A packed bundle reads like the bundle, tells nothing of its owner, and is always the same."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.bundle.archive import ArchiveError, unpack
from orchestrator.bundle.diagnose import diagnose
from orchestrator.bundle.manifest import Manifest
from orchestrator.bundle.opened import NoBundleError, open_bundle
from orchestrator.bundle.output import OutputError
from orchestrator.bundle.pack import Packed, pack
from orchestrator.bundle.reader import read_bundle
from orchestrator.bundle.records import StageRecord
from orchestrator.bundle.redact import Redactor
from orchestrator.bundle.writer import Bounds, BundleWriter
from orchestrator.transport.ssh import CIPHERS
from tests.support import page_bundles
from tests.support.bundles import CASES, RECORDED, Run

ROOT_HOME = "/" + "root"
SECRETS = {
    "hub token": "hf_abcdefghijklmnopqrstuvwxyz",
    "code token": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4",
    "password": "correct-horse",
    "login": "mallory",
}


def packed(folder: Path, target: Path, *, hide_hosts: bool = False) -> Packed:
    return pack(folder, read_bundle(folder), target, hide_hosts=hide_hosts)


def content(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        files = {m.name: tar.extractfile(m) for m in tar}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def leaky(path: Path) -> Path:
    """A bundle of somebody who logs in as mallory and wrote secrets where nobody looks for them."""
    run = page_bundles.WideRun(
        path,
        ("gpu1.lan", "mallory@10.1.2.3:2222"),
        ("orchestrator", "run", "--cache", "/home/mallory/models"),
    )
    for stage in (0, 1):
        run.start(stage)
    run.writer.stderr(
        1,
        "mallory@10.1.2.3:2222",
        f"get https://bob:{SECRETS['password']}@hub.corp.example/x?sig={SECRETS['web token']}\n"
        f"token {SECRETS['hub token']} then {SECRETS['code token']}\n"
        "File /home/mallory/models/x.py, /data/mallory/y, "
        f"{ROOT_HOME}/.cache/z and fd00::17\n".encode(),
    )
    run.lose(1, 4000, "was killed near /home/mallory/models on gpu1")
    run.close(4100, 5, "stage 1 on mallory@10.1.2.3:2222 was killed")
    return path


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("suffix", ["tar.gz", "zip"])
def test_an_archive_is_diagnosed_like_the_bundle(name: str, suffix: str, tmp_path: Path) -> None:
    target = tmp_path / f"it.{suffix}"
    packed(RECORDED / name, target)
    assert diagnose(open_bundle(target)) == diagnose(read_bundle(RECORDED / name))


def test_no_secret_home_or_user_is_left(tmp_path: Path) -> None:
    done = packed(leaky(tmp_path / "b"), tmp_path / "p.tar.gz")
    files = content(tmp_path / "p.tar.gz")
    left = {what for what, text in SECRETS.items() if any(text in f for f in files.values())}
    assert (left, stat.S_IMODE((tmp_path / "p.tar.gz").stat().st_mode)) == (set(), 0o600)
    assert files["p/stderr/stage-1.log"].splitlines() == [
        "get https://***@hub.corp.example/x?sig=***",
        "token *** then ***",
        "File ~/models/x.py, /data/user1/y, ~/.cache/z and fd00::17",
    ]
    assert set(done.counts) == {"home folder", "secret", "user name"}


def test_hidden_hosts_are_the_same_everywhere(tmp_path: Path) -> None:
    packed(leaky(tmp_path / "b"), tmp_path / "p.tar.gz", hide_hosts=True)
    files = content(tmp_path / "p.tar.gz")
    names = ("gpu1", "10.1.2.3", "corp.example", "fd00", "hub")
    everything = "".join(text for name, text in files.items() if "json" in name or "log" in name)
    values = [value for value in names if value in everything.replace("hub_", "")]
    bundle = open_bundle(tmp_path / "p.tar.gz")
    assert values == []
    assert [stage.host for stage in bundle.manifest.stages] == ["host2", "user1@host1:2222"]
    assert bundle.manifest.host == "host3"
    assert bundle.failures[0].value.sentence == (
        "stage 1 on user1@host1:2222 was killed near ~/models on host2"
    )


def test_a_spare_is_hidden_and_nothing_but_hosts_is(tmp_path: Path) -> None:
    python = "python=/srv/app/.venv/bin/python"
    stage = StageRecord(
        stage=0,
        host="alpha",
        transport="ssh",
        command=("ssh", "-o", f"Ciphers={CIPHERS}", "-o", "StrictHostKeyChecking=yes", "alpha"),
    )
    lines = (
        f"alpha {python} layers=0:12",
        f"spare delta {python}",
        "spare zeta",
        'command="kubectl exec -i x"',
    )
    writer = BundleWriter(tmp_path / "b", Manifest(hosts=lines, stages=(stage,)))
    writer.close(5, "the spare delta and http://127.0.0.1:80 did not answer")
    done = packed(tmp_path / "b", tmp_path / "p.tar.gz", hide_hosts=True)
    bundle = open_bundle(done.path)
    assert bundle.manifest.hosts == (
        f"host1 {python} layers=0:12",
        f"spare host2 {python}",
        "spare host4",
        'command="kubectl exec -i x"',
    )
    assert bundle.manifest.stages[0].command == (*stage.command[:-1], "host1")
    assert bundle.end is not None
    assert bundle.end.error == "the spare host2 and http://127.0.0.1:80 did not answer"
    assert set(done.counts) == {"host"}


def test_the_same_bundle_gives_the_same_bytes(tmp_path: Path) -> None:
    for suffix in ("tar.gz", "zip"):
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir(exist_ok=True)
            packed(RECORDED / "crashed", tmp_path / folder / f"p.{suffix}")
        one, two = (tmp_path / folder / f"p.{suffix}" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_an_archive_is_never_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "p.zip"
    target.write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists; remove it or give another name with -o"):
        packed(RECORDED / "crashed", target)
    assert (target.read_bytes(), [p.name for p in tmp_path.iterdir()]) == (b"mine", ["p.zip"])


def test_a_bundle_in_segments_keeps_its_gaps_and_places(tmp_path: Path) -> None:
    run = Run(tmp_path / "b")
    run.writer._bounds = Bounds(records_bytes=2000)
    for number in range(200):
        run.writer.line(0, "alpha", b'{"event":"x","at":"/home/zoe/%d"}' % number, 5.0)
    run.close(0)
    before = read_bundle(tmp_path / "b")
    packed(tmp_path / "b", tmp_path / "p.tar.gz")
    after = open_bundle(tmp_path / "p.tar.gz")
    assert [(k.where.partition(":")[2], k.after_gap) for k in after.lines] == [
        (k.where.partition(":")[2], k.after_gap) for k in before.lines
    ]
    assert len(after.problems) == len(before.problems) == 1


def test_a_packed_bundle_can_be_packed_again(tmp_path: Path) -> None:
    packed(leaky(tmp_path / "b"), tmp_path / "p.tar.gz")
    folder = unpack(tmp_path / "p.tar.gz", tmp_path / "out")
    (tmp_path / "again").mkdir()
    again = packed(folder, tmp_path / "again" / "p.tar.gz")
    assert (again.counts, content(again.path)) == (
        {},
        content(tmp_path / "p.tar.gz") | {"p/pack.json": content(again.path)["p/pack.json"]},
    )


def tar_of(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("b/end.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


def test_an_archive_cannot_reach_out_of_its_folder(tmp_path: Path) -> None:
    evil = tar_of(
        tmp_path / "e.tar.gz",
        ("../../manifest.json", b"{}"),
        ("/abs/manifest.json", b"{}"),
        ("b/manifest.json", b'{"host":"here"}'),
        ("b/../../../x.jsonl", b"{}"),
        ("b/run.sh", b"rm -rf /"),
    )
    out = tmp_path / "out"
    folder = unpack(evil, out)
    files = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert all(name.startswith("bundle-") and name.endswith((".json", ".jsonl")) for name in files)
    assert json.loads((folder / "manifest.json").read_text()) == {"host": "here"}
    assert not any(p.is_symlink() for p in out.rglob("*"))
    assert {p.name for p in tmp_path.iterdir()} == {"e.tar.gz", "out"}


def a_text(path: Path) -> None:
    path.write_text("just a text\n")


def a_cut_archive(path: Path) -> None:
    packed(RECORDED / "crashed", path.with_name("whole.tar.gz"))
    whole = path.with_name("whole.tar.gz").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def an_empty_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("a/readme.txt", "hello")


@pytest.mark.parametrize("make", [a_text, a_cut_archive, an_empty_zip])
def test_what_is_no_archive_of_a_bundle_is_said(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "x")
    with pytest.raises(NoBundleError, match=r"/x (is no bundle|holds no bundle)"):
        open_bundle(tmp_path / "x")


def test_a_damaged_archive_of_any_kind_is_said(tmp_path: Path) -> None:
    path, damage = tmp_path / "given", 0
    with tarfile.open(path, "w:xz") as tar:
        tar.add(RECORDED / "finished", "b")
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_LZMA) as archive:
        archive.write(RECORDED / "finished" / "manifest.json", "b/manifest.json")
    nameless = io.BytesIO()
    with zipfile.ZipFile(nameless, "w") as archive:
        archive.writestr(zipfile.ZipInfo(""), b"{}")
    for whole in (path.read_bytes(), zipped.getvalue(), nameless.getvalue()):
        for place in (60, 90, len(whole) // 2):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
            try:
                unpack(path, tmp_path / f"out-{damage}")
            except ArchiveError:
                damage += 1
    assert damage > 3


def test_no_link_pipe_or_device_is_read_or_packed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "b", tmp_path / "outside"
    shutil.copytree(RECORDED / "finished", folder)
    outside.write_text("not of the bundle")
    (folder / "stderr").mkdir(exist_ok=True)
    (folder / "stderr" / "stage-7.log").symlink_to(outside)
    (folder / "recoveries.jsonl").symlink_to("/dev/zero")
    os.mkfifo(folder / "failures.jsonl")
    bundle = read_bundle(folder)
    assert bundle.problems == (
        "failures.jsonl: not a plain file",
        "recoveries.jsonl: not a plain file",
        "stderr/stage-7.log: not a plain file",
    )
    made = packed(folder, tmp_path / "o.tar.gz")
    assert made.left_out == ("failures.jsonl", "recoveries.jsonl", "stderr/stage-7.log")
    assert "not of the bundle" not in str(content(made.path))


def test_an_archive_that_swells_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.bundle.archive.MOST_BYTES", 10_000)
    big = tar_of(
        tmp_path / "x.tar.gz", ("b/manifest.json", b"{}"), ("b/events.jsonl", bytes(10**6))
    )
    with pytest.raises(ArchiveError, match="unpacks to more than"):
        unpack(big, tmp_path / "out")
    assert (tmp_path / "out" / "bundle-0" / "events.jsonl").stat().st_size < 1_100_000


@pytest.mark.parametrize(
    "text",
    [
        "layers 0:12 20:30, took 12:34:56 and std::bad_alloc at c10::Error",
        "torch 2.13.0+cpu, protocol 1.0, 127.0.0.1 and ::1 and localhost",
        "model Qwen/Qwen3-8B from https://huggingface.co/Qwen on cuda:0, cache/home/x",
    ],
)
def test_innocent_text_stays(text: str) -> None:
    assert Redactor(["bob"], ["gpu7.lan", "local"], hide_hosts=True).text(text) == text
