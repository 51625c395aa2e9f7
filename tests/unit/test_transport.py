"""The three transports' command lines, and the process behind them."""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.transport.base import ExitStatus, Launch, LineTooLong, PipeClosed, SpawnError
from orchestrator.transport.pipes import PipedProcess
from orchestrator.transport.ssh import CIPHERS, FIRST_WORDS, LAST_WORDS, SshTarget, for_login_shell

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
MIB = 1024 * 1024


def with_process(argv: tuple[str, ...], act: Callable[[PipedProcess], Awaitable[T]]) -> T:
    """Run `act` with a process; end it."""

    async def run() -> T:
        stderr: list[bytes] = []
        launch = Launch("here", argv, "local")
        process = await PipedProcess.start(launch, max_line_bytes=16 * MIB, on_stderr=stderr.append)
        try:
            return await asyncio.wait_for(act(process), 30)
        finally:
            process.kill()
            await process.wait()
            process.close()
            await asyncio.sleep(0)

    return asyncio.run(run())


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def test_lines_go_in_and_come_out_whole_also_long_ones() -> None:
    lines = [b"a\n", b"x" * (5 * MIB) + b"\n", b"\n", b"b\n"]

    async def echo(process: PipedProcess) -> list[bytes]:
        for line in lines:
            process.write(line)
        process.close_stdin()
        echoed: list[bytes] = []
        await process.each_line(echoed.append)
        return echoed

    assert with_process(("cat",), echo) == lines


def test_a_full_pipe_holds_the_sender_back_and_counts_as_unsent() -> None:
    async def fill(process: PipedProcess) -> tuple[bool, bool]:
        process.write(b"x" * (4 * MIB) + b"\n")
        held = asyncio.ensure_future(process.room())
        await asyncio.wait({held}, timeout=0.05)
        was_held = not held.done() and process.bytes_unsent > 0
        process.kill()
        with pytest.raises(PipeClosed):
            await held
        return was_held, process.bytes_unsent == 0

    assert with_process(("sleep", "60"), fill) == (True, True)


def test_writing_to_a_process_that_closed_its_stdin_is_an_error() -> None:
    async def write(process: PipedProcess) -> None:
        await process.readline()
        while True:
            process.write(b"hello\n")
            await asyncio.sleep(0)
            await process.room()

    with pytest.raises(PipeClosed):
        with_process(shell("exec 0<&-; echo closed; exec sleep 60"), write)


def test_a_line_over_the_limit_is_an_error() -> None:
    async def read(process: PipedProcess) -> list[bytes]:
        lines: list[bytes] = []
        with pytest.raises(LineTooLong):
            await process.each_line(lines.append)
        return lines

    assert with_process(shell("echo one; exec yes | tr -d '\\n'"), read) == [b"one\n"]


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 0", ExitStatus(0)),
        ("exit 7", ExitStatus(7)),
        ("exit 127", ExitStatus(127)),
        ("exit 255", ExitStatus(255)),
        ("kill -9 $$", ExitStatus(None, "SIGKILL")),
        ("sh -c 'kill -SEGV $$'; exit $?", ExitStatus(139, "SIGSEGV")),
    ],
)
def test_exit_codes_and_signals_are_told_apart(script: str, status: ExitStatus) -> None:
    assert with_process(shell(script), lambda process: process.wait()) == status


def test_what_a_process_leaves_in_its_group_ends_with_it() -> None:
    async def wait(process: PipedProcess) -> tuple[ExitStatus, bool]:
        child = os.pidfd_open(int(await process.readline()))
        try:
            status = await process.wait()
            # Readable once it has ended, also where nobody reaps it.
            ended, _, _ = select.select([child], [], [], 10)
        finally:
            os.close(child)
        return status, bool(ended)

    assert with_process(shell("sleep 60 & echo $!; exit 3"), wait) == (ExitStatus(3), True)


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(SpawnError, match="there is no program 'no-such-program' here"):
        with_process(("no-such-program",), lambda process: process.wait())


def test_a_local_worker_runs_this_code_whatever_the_folder_holds() -> None:
    spec = StageSpec(
        stage=1,
        num_stages=2,
        environment={"OMP_NUM_THREADS": "1"},
        options=WorkerOptions(model_id="-m odd name", threads=2, stub=True),
    )
    assert spec.launch("abc").argv == (
        *("env", "-u", "STAGE", "-u", "NUM_STAGES", "-u", "MODEL"),
        *("OMP_NUM_THREADS=1", f"PYTHONPATH={ROOT}"),
        *(sys.executable, "-P", "-m", "worker", "--stage=1", "--num-stages=2", "--nonce=abc"),
        *("--model-id=-m odd name", "--threads=2", "--stub"),
    )


@pytest.mark.parametrize(
    ("killed_meanwhile", "said"),
    [("", ""), ("oom_kill 4", "kernel: Killed process 815 (python)\nkernel: oom_kill 4\n")],
)
def test_the_kernel_is_quoted_only_where_it_killed_meanwhile(
    killed_meanwhile: str, said: str, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    counter.write_text("oom_kill 3\n")
    (tmp_path / "dmesg").write_text("#!/bin/sh\necho 'Killed process 815 (python)'\n")
    (tmp_path / "grep").write_text(
        f'#!/bin/sh\n[ "$2" = /proc/vmstat ] && exec cat {counter}\nexec /bin/grep "$@"\n'
    )
    for name in ("dmesg", "grep"):
        (tmp_path / name).chmod(0o700)
    change = f"echo '{killed_meanwhile}' > {counter}; " if killed_meanwhile else ""
    done = subprocess.run(
        ["/bin/sh", "-c", f'{FIRST_WORDS}; sh -c "{change}kill -9 \\$\\$"; {LAST_WORDS}'],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    told = "".join(line for line in done.stderr.splitlines(True) if line.startswith("kernel: "))
    assert (done.returncode, told) == (137, said)


def test_the_ssh_command_line_is_the_measured_one() -> None:
    spec = StageSpec(
        stage=0,
        num_stages=1,
        host="node-b",
        transport="ssh",
        layers=(3, 5),
        python="/opt/a b/python",
        code="installed",
        environment={"NAME": "it's $HOME"},
        ssh=SshTarget(host="node-b", user="ann", port=2222, accept_new_host_key=True),
    )
    remote = (
        f"{FIRST_WORDS}; "
        "env -u STAGE -u NUM_STAGES -u MODEL 'NAME=it'\"'\"'s $HOME' '/opt/a b/python' -P -m "
        f"worker --shard-start=3 --shard-end=5 --nonce=abc; {LAST_WORDS}"
    )
    options = (
        *("BatchMode=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3", "Compression=no"),
        *(f"Ciphers={CIPHERS}", "IPQoS=none", "ControlMaster=no", "ControlPath=none"),
        *("ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "Tunnel=no"),
        *("RemoteCommand=none", "PermitLocalCommand=no", "LogLevel=ERROR"),
        *("StrictHostKeyChecking=accept-new", "ConnectTimeout=10"),
    )
    flags = tuple(word for option in options for word in ("-o", option))
    assert spec.launch("abc").argv == (
        *("ssh", "-T", *flags, "-p", "2222", "-l", "ann"),
        *("--", "node-b", "sh -c '" + remote.replace("'", "'\\''") + "'"),
    )


@pytest.mark.parametrize("shell", [s for s in ("dash", "bash", "zsh", "ksh") if shutil.which(s)])
def test_the_remote_shell_gives_the_arguments_back_exactly(shell: str, tmp_path: Path) -> None:
    odd = "a b'c\"d$HOME`x`\\\n\té;&|!*"
    program = tmp_path / "print it's arguments"
    program.write_text('#!/bin/sh\nprintf \'%s\\0\' "$V" "$@"\n')
    program.chmod(0o755)
    spec = StageSpec(
        stage=0,
        num_stages=1,
        transport="ssh",
        python=str(program),
        code="installed",
        environment={"V": odd},
        ssh=SshTarget(host="h"),
        options=WorkerOptions(model_id=odd),
    )
    remote = spec.launch("n").argv[-1]
    shown = subprocess.run([shell, "-c", remote], capture_output=True, check=True).stdout
    words = shown.decode().split("\0")
    assert (words[0], words[1:4], words[-2]) == (odd, ["-P", "-m", "worker"], f"--model-id={odd}")


def test_nothing_that_csh_or_fish_reads_within_quotes_stands_there() -> None:
    assert for_login_shell("it's !\\") == "sh -c 'it'\\''s '\\!''\\\\''"


@pytest.mark.parametrize("shell", [s for s in ("sh", "tcsh", "fish") if shutil.which(s)])
def test_shells_of_other_languages_give_a_line_to_sh_exactly(shell: str) -> None:
    odd = "it's !x !! \\d \\\\ \\' \"$HOME\" `x` {a,b} * ~ # % ^ é"
    line = for_login_shell(f"printf %s {shlex.quote(odd)}; exit 3")
    done = subprocess.run([shell, "-c", line], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (3, odd)


def test_a_launcher_gets_the_worker_behind_its_own_words() -> None:
    spec = StageSpec(
        stage=0,
        num_stages=1,
        transport="command",
        command=("kubectl", "exec", "-i", "llm-0", "--"),
        python="python3",
        code="installed",
        secrets={"HF_TOKEN": "hf_one"},
    )
    assert spec.launch("n").argv == (
        *("kubectl", "exec", "-i", "llm-0", "--", "env", "-u", "STAGE", "-u", "NUM_STAGES"),
        *("-u", "MODEL", "python3", "-P", "-m", "worker", "--stage=0", "--num-stages=1"),
        *("--nonce=n", "--await-environment"),
    )


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", ""])
def test_a_host_that_ssh_would_take_for_an_option_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="begins with '-'; give a real name"):
        SshTarget(host=host)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "password", "DB_PASS", "API_KEYS"]
)
def test_a_secret_is_refused_on_a_command_line(name: str) -> None:
    with pytest.raises(ValueError, match=f"env.{name}= would be readable in the process list"):
        StageSpec(stage=0, num_stages=1, environment={name: "x"})


def test_an_address_with_a_password_is_refused_on_a_command_line() -> None:
    address = "http://ann:hunter2@proxy:3128"
    with pytest.raises(ValueError, match=r"env\.HTTPS_PROXY= would be readable") as caught:
        StageSpec(stage=0, num_stages=1, environment={"HTTPS_PROXY": address})
    assert "hunter2" not in str(caught.value)


def test_a_setting_that_only_sounds_secret_is_allowed() -> None:
    settings = {
        "TOKENIZERS_PARALLELISM": "false",
        "MAX_TOKENS": "9",
        "BYPASS": "1",
        "HTTPS_PROXY": "http://ann@proxy:3128",
    }
    StageSpec(stage=0, num_stages=1, environment=settings)
