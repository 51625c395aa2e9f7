"""Planted secrets are in no command line, no bundle, no archive and nothing that is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from tests.support.cli import COMMAND, environment, run_cli
from tests.support.sshd import running_sshd, sshd_binary

LIMIT_S = 60.0
SECRETS = (
    "plantedTokenNumber0001",
    "plantedEndpoint2",
    "planted%40Proxy3",
    "planted@Proxy3",
    "plantedForwarded4",
)
IN_PATH = "plantedInPath5"
VARIABLES = {
    "HF_TOKEN": "hf_plantedTokenNumber0001",
    "HF_ENDPOINT": "http://someone:plantedEndpoint2@127.0.0.1:9",
    "HTTPS_PROXY": "http://someone:planted%40Proxy3@127.0.0.1:9",
    "PLANTED_VARIABLE": "plantedForwarded4",
}
ECHO = "echo $HF_TOKEN $HF_ENDPOINT $HTTPS_PROXY planted@Proxy3 $PLANTED_VARIABLE"
# Both streams; the last without an end, as of a library that is cut short.
CHATTY = f'{ECHO}\n{ECHO} >&2\nprintf half-$HF_TOKEN >&2\nexec "$@"\n'
FAILING = f"{ECHO} >&2\nexit 7\n"
MODEL = f"https://someone:{IN_PATH}@127.0.0.1:9/model"


@pytest.fixture(scope="module")
def ssh_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield a hosts line of a host over SSH and the flags that reach it."""
    if sshd_binary() is None and not os.environ.get("CI"):
        yield "local", ()
        return
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield f"127.0.0.1:{server.port}", ("--ssh-command", server.client())


def hosts_file(folder: Path, *lines: str) -> str:
    path = folder / "hosts.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def command_line(folder: Path, script: str) -> str:
    program = folder / "launcher.sh"
    program.write_text(script)
    return f'command="sh {program}"'


def leaks(texts: Mapping[str, bytes], secrets: Sequence[str] = SECRETS) -> list[str]:
    """Return where which secret stands."""
    return [
        f"{secret} in {name}"
        for name, text in texts.items()
        for secret in secrets
        if secret.encode() in text
    ]


def command_lines() -> dict[str, bytes]:
    found = {}
    for process in psutil.process_iter():
        try:
            found[f"process {process.pid}"] = " ".join(process.cmdline()).encode()
        except psutil.Error:
            continue
    return found


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def members(archive: Path) -> dict[str, bytes]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            return {name: packed.read(name) for name in packed.namelist()}
    with tarfile.open(archive) as tar:
        return {
            one.name: tar.extractfile(one).read()  # type: ignore[union-attr]
            for one in tar
            if one.isfile()
        }


def test_a_run_keeps_its_secrets(tmp_path: Path, ssh_line: tuple[str, Sequence[str]]) -> None:
    line, flags = ssh_line
    hosts = hosts_file(tmp_path, command_line(tmp_path, CHATTY), line)
    process = subprocess.Popen(
        [
            *(*COMMAND, "run", "--stub", "--prompt", "a b c", "--max-new-tokens", "1000000"),
            *("--hosts", hosts, "--model-id", MODEL, "--forward", "PLANTED_VARIABLE", *flags),
            *("--bundle-dir", tmp_path / "bundles"),
        ],
        env=environment(VARIABLES),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    with process:
        assert process.stdout is not None
        try:
            assert process.stdout.read(1), process.stderr.read() if process.stderr else b""
            seen = command_lines()
        finally:
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert leaks({**seen, "stdout": stdout, "stderr": stderr}) == []
    bundle = next((tmp_path / "bundles").iterdir())
    kept = files_below(bundle)
    assert b"***" in kept["events.jsonl"]
    assert b"half-***" in kept["stderr/stage-0.log"]
    assert leaks(kept, (*SECRETS, IN_PATH)) == []
    archive = tmp_path / "packed.tar.gz"
    done = run_cli("bundle", "pack", str(bundle), "--output", str(archive))
    assert done.returncode == 0, done.stderr
    assert leaks(members(archive), (*SECRETS, IN_PATH)) == []


@pytest.mark.parametrize("output", [(), ("--json",)])
def test_a_failure_that_quotes_secrets_keeps_them(tmp_path: Path, output: tuple[str, ...]) -> None:
    done = subprocess.run(
        [
            *(*COMMAND, "run", "--stub", "--prompt", "a", "--restarts", "0", *output),
            *("--hosts", hosts_file(tmp_path, command_line(tmp_path, FAILING))),
            *("--forward", "PLANTED_VARIABLE", "--bundle-dir", tmp_path / "bundles"),
        ],
        env=environment(VARIABLES),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 5, done.stderr
    printed = {"stdout": done.stdout, "stderr": done.stderr}
    assert any(b"***" in text for text in printed.values())
    assert leaks({**printed, **files_below(tmp_path / "bundles")}) == []
