"""`orchestrator cache`: what hosts keep is seen, checked byte by byte, mended and freed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import ROOT, run_cli
from tests.support.errand_hosts import hosts_file
from tests.support.hub import COMMIT, Hub, serve_hub
from tests.support.tiny import tiny_checkpoint

REPO = "org/tiny"
SSH = str(ROOT / "tests" / "bin" / "ssh")


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of weights as a fetch leaves it."""
    model = tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    cache = tmp_path_factory.mktemp("cache")
    with serve_hub(Hub({REPO: model})) as hub, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.endpoint)
        patch.setenv("HF_HOME", str(cache / "hf"))
        done = run_cli("fetch", "--local", "1", "--model-id", REPO, "--cache-dir", str(cache / "w"))
        assert done.returncode == 0, done.stderr
        yield cache / "w"


@pytest.fixture
def cache(fetched: Path, tmp_path: Path) -> str:
    """A copy that a test may break."""
    copy = tmp_path / "w"
    for path in fetched.rglob("*"):
        if path.is_file():
            (copy / path.relative_to(fetched)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(fetched)).write_bytes(path.read_bytes())
    return str(copy)


def part_of(cache: str) -> Path:
    return max(Path(cache).rglob("*.safetensors"), key=lambda path: path.stat().st_size)


def test_what_is_kept_is_listed_by_host(cache: str, tmp_path: Path) -> None:
    remote = f"gpu1 python={sys.executable} env.PYTHONPATH={ROOT}"
    hosts = hosts_file(tmp_path, "local", remote, f"{remote} device=cuda:1")
    words = ("--hosts", hosts, "--ssh-command", SSH, "--cache-dir", cache)
    done = run_cli("cache", "ls", *words, "--json")
    entries = json.loads(done.stdout)["entries"]
    assert (done.returncode, [entry["host"] for entry in entries]) == (0, ["local", "gpu1"])
    assert {(e["model_id"], e["commit"], e["layers"]) for e in entries} == {(REPO, COMMIT, "0:6")}
    table = run_cli("cache", "ls", *words).stdout.splitlines()
    assert table[0].split()[:4] == ["host", "model", "commit", "layers"]
    assert [line.split()[:3] for line in table[1:]] == [
        ["local", REPO, COMMIT[:8]],
        ["gpu1", REPO, COMMIT[:8]],
    ]


def test_a_wrong_byte_is_found_named_and_mended(cache: str) -> None:
    whole = run_cli("cache", "verify", "--cache-dir", cache, "--model-id", REPO)
    part = part_of(cache)
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    broken = run_cli("cache", "verify", "--cache-dir", cache)
    mended = run_cli("cache", "verify", "--cache-dir", cache, "--repair")
    again = run_cli("cache", "verify", "--cache-dir", cache)
    codes = [done.returncode for done in (whole, broken, mended, again)]
    assert codes == [0, 3, 0, 0], broken.stderr
    error = broken.stderr.splitlines()[-1]
    assert error.startswith(f"error: {part.name} of {REPO} on local is broken: ")
    assert error.count("--repair") == 1
    note = mended.stderr.splitlines()[-1]
    assert note.startswith(f"note: {part.name} of {REPO} on local is broken: ")
    assert note.count("removed") == 1
    assert not part.exists()


def test_what_is_removed_is_gone(cache: str) -> None:
    other = run_cli("cache", "rm", "--cache-dir", cache, "--model-id", "org/other")
    sentence = "no weights of org/other are kept here; `orchestrator cache ls` shows what is kept"
    said = other.stderr.splitlines()[-1]
    assert (other.returncode, other.stdout, said) == (3, "", f"error: {sentence}")
    done = run_cli("cache", "rm", "--cache-dir", cache, "--model-id", REPO, "--json")
    (removed,) = json.loads(done.stdout)["removed"]
    assert (done.returncode, removed["model_id"], removed["bytes_freed"] > 0) == (0, REPO, True)
    left = run_cli("cache", "ls", "--cache-dir", cache)
    assert (left.returncode, left.stdout) == (0, "no weights are kept here\n")


@pytest.mark.parametrize(
    ("action", "words", "named"),
    [
        ("rm", (REPO, "--revision", "main"), "main"),
        ("verify", (REPO, "--revision", "c0f"), "c0f"),
        ("rm", (REPO, "--revision", ""), "''"),
        ("ls", (f"{REPO}@main",), "main"),
    ],
)
def test_a_revision_that_is_no_commit_is_refused(
    action: str, words: tuple[str, ...], named: str, cache: str
) -> None:
    done = run_cli("cache", action, "--cache-dir", cache, "--model-id", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith(
        f"{named} is no commit (4 to 40 hexadecimal digits); `orchestrator cache ls` shows them"
    )
    assert part_of(cache).exists()


@pytest.mark.parametrize("words", [(), ("--all", "--model-id", REPO)])
def test_removing_needs_to_be_told_what(words: tuple[str, ...]) -> None:
    done = run_cli("cache", "rm", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "give --model-id (what to remove), or --all" in done.stderr.splitlines()[-1]
