"""`orchestrator setup` over a real sshd, from an index on loopback with tiny wheels."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from orchestrator import __version__
from tests.support.cli import COMMAND, environment, run_cli
from tests.support.odd_python import OLD, WITHOUT_ENSUREPIP, odd_python
from tests.support.package_index import DIRECT, pinned_versions, running_index
from tests.support.sshd import Sshd, free_port, running_sshd, sshd_binary

pytestmark = [
    pytest.mark.timeout(400),  # several runs of pip, of some seconds each on a quiet machine
    pytest.mark.sshd,
    pytest.mark.skipif(
        sshd_binary() is None and not os.environ.get("CI"), reason="no OpenSSH server here"
    ),
]
DEADLINE_S = 30.0


@dataclass(frozen=True)
class Host:
    """A user's empty home on a host that has Python, pip and SSH.

    Attributes:
        server: its sshd.
        home: the home folder.
        index: address of the index that its pip.conf names.
        python: what the venv is made with.
    """

    server: Sshd
    home: Path
    index: str
    python: str = sys.executable

    @property
    def venv(self) -> Path:
        """Where setup installs."""
        return self.home / ".local" / "share" / "stageline" / "venv"

    @property
    def reach(self) -> tuple[str, ...]:
        """Return the words that name it to the command line."""
        return ("--hosts", str(self.home / "hosts.txt"), "--ssh-command", self.server.client())

    def use_index(self, address: str) -> None:
        """Have pip there use an index; a second try would only take time."""
        folder = self.home / ".config" / "pip"
        folder.mkdir(parents=True, exist_ok=True)
        text = f"[global]\nindex-url = {address}\nretries = 0\nuser = true\n"
        (folder / "pip.conf").write_text(text)

    def setup(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run setup."""
        words = ("setup", *self.reach, "--python", self.python, *words)
        return run_cli(*words, timeout_s=4 * DEADLINE_S)

    def outcome(self, *words: str) -> tuple[int, str, str]:
        """Return setup's exit code, the host's outcome and the text."""
        done = self.setup("--json", *words)
        (host,) = json.loads(done.stdout)["hosts"]
        return done.returncode, host["outcome"], host["text"]

    def site(self, name: str) -> Path:
        """Return something in the venv's folder of packages."""
        (folder,) = self.venv.glob("lib/python*/site-packages")
        return folder / name


def new_host(server: Sshd, index: str, home: Path) -> Host:
    home.mkdir()
    # Settings of this machine for pip must not count.
    lines = f"{server.user}@127.0.0.1:{server.port} env.HOME={home} env.XDG_CONFIG_DIRS=/nowhere\n"
    (home / "hosts.txt").write_text(lines)
    host = Host(server, home, index)
    host.use_index(index)
    return host


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_index(tmp_path_factory.mktemp("index")) as address:
        yield address


@pytest.fixture(scope="module")
def half_made(server: Sshd, index: str, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Return a host whose setup was cut off before the venv had pip."""
    host = new_host(server, index, tmp_path_factory.mktemp("ready") / "home")
    venv.create(host.venv, with_pip=False, symlinks=True)
    return host


@pytest.fixture(scope="module")
def ready(half_made: Host) -> Host:
    """Return a host that has been set up."""
    done = half_made.setup()
    assert done.returncode == 0, done.stdout + done.stderr
    return half_made


@pytest.fixture
def bare(server: Sshd, index: str, tmp_path: Path) -> Host:
    """Return a host where nothing was done yet."""
    return new_host(server, index, tmp_path / "home")


def test_a_half_made_venv_is_to_be_made_anew(half_made: Host) -> None:
    code, outcome, text = half_made.outcome("--dry-run")
    words = f"gets a new venv for the broken one in {half_made.venv}, torch=="
    assert (code, outcome, text[: len(words)]) == (0, "planned", words)


def test_the_pinned_versions_are_installed_with_the_code_that_runs_here(ready: Host) -> None:
    listed = "import json, importlib.metadata as m; print(json.dumps({d.name.lower(): d.version "
    code = [ready.venv / "bin" / "python", "-I", "-c", listed + "for d in m.distributions()}))"]
    found = json.loads(subprocess.run(code, check=True, capture_output=True).stdout)
    tested = pinned_versions()
    wanted = {name: tested[name] for name in (*DIRECT, "pyyaml")} | {"stageline": __version__}
    assert {name: found.get(name) for name in wanted} == wanted
    program = subprocess.run(
        [ready.venv / "bin" / "stageline", "--version"], check=True, capture_output=True, text=True
    )
    assert program.stdout.split() == ["stageline", __version__]


def test_a_second_setup_changes_nothing_and_says_so(ready: Host) -> None:
    def stamps() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in ready.venv.rglob("*")}

    before = stamps()
    assert ready.outcome() == (
        0,
        "unchanged",
        f"has stageline {__version__} and its packages already; nothing to do",
    )
    assert stamps() == before


def test_workers_and_the_doctor_find_what_setup_made(ready: Host) -> None:
    done = run_cli("doctor", *ready.reach, "--json")
    (host,) = json.loads(done.stdout)["hosts"]
    assert (done.returncode, host["facts"]["python"]["path"]) == (
        0,
        str(ready.venv / "bin" / "python"),
    )
    run = run_cli("run", *ready.reach, "--stub", "--prompt", "a b", "--no-bundle")
    assert (run.returncode, bool(run.stdout.strip())) == (0, True), run.stderr


def test_what_an_index_lacks_is_named_and_comes_once_it_is_there(ready: Host) -> None:
    (info,) = ready.site("").glob("filelock-*.dist-info")
    shutil.rmtree(info)
    versions = pinned_versions()
    ready.use_index(f"http://127.0.0.1:{free_port()}/")
    begin = "cannot install with pip: Could not find a version that satisfies the requirement "
    down = f"{begin}filelock=={versions['filelock']} "
    code, outcome, text = ready.outcome()
    assert (code, outcome, text[: len(down)]) == (5, "failed", down)
    assert "pip config list" in text
    ready.use_index(ready.index)
    lacks = f"{begin}torch=={versions['torch']}+cpu "
    code, outcome, text = ready.outcome("--torch", "cpu")
    assert (code, outcome, text[: len(lacks)]) == (5, "failed", lacks)
    assert ready.outcome()[:2] == (0, "installed")
    assert ready.outcome()[:2] == (0, "unchanged")


def test_a_dry_run_leaves_the_host_as_it_is(bare: Host) -> None:
    code, outcome, text = bare.outcome("--dry-run")
    assert (code, outcome, text.split(", ")[0]) == (
        0,
        "planned",
        f"gets a venv in {bare.venv}",
    )
    assert not (bare.home / ".local").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (OLD, "has Python 3.8.10 as .*, and needs 3.11 or newer; install one there .*"),
        (WITHOUT_ENSUREPIP, "has python3.* without ensurepip, .*sudo apt-get install -y python3.*"),
    ],
)
def test_a_python_that_cannot_make_a_venv_is_told_with_the_next_step(
    bare: Host, change: str, words: str
) -> None:
    python = odd_python(bare.home / "odd_python", change)
    code, outcome, text = Host(bare.server, bare.home, bare.index, str(python)).outcome()
    assert (code, outcome) == (5, "failed")
    assert re.fullmatch(words, text), text


def test_hosts_that_need_no_venv_are_left_alone_with_a_word(bare: Host) -> None:
    (bare.home / "hosts.txt").write_text("local\nsomewhere.invalid python=/opt/python\n")
    done = bare.setup()
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "local runs with this Python, which has what it needs",
            (
                "somewhere.invalid names its own Python (python=/opt/python in "
                f"{bare.home / 'hosts.txt'}:2), which is left as it is; leave python= out to have "
                "one made"
            ),
        ],
    )


def test_pip_ends_with_the_orchestrator(ready: Host) -> None:
    (info,) = ready.site("").glob("rich-*.dist-info")
    shutil.rmtree(info)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ready.use_index(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        command = [*COMMAND, "setup", *ready.reach, "--python", ready.python]
        setup = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
        silent.settimeout(DEADLINE_S)
        with silent.accept()[0]:  # pip is there, and waits
            (pip,) = pips(ready)
            setup.kill()
            setup.wait()
            _, alive = psutil.wait_procs([pip], DEADLINE_S)
    assert alive == []


def pips(host: Host) -> list[psutil.Process]:
    """Return the pip that runs in the host's venv."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words and words[0] == str(host.venv / "bin" / "python") and "pip" in words:
                found.append(process)
    return found
