"""Broken runs of stub workers: the program, the process, the answers of one stage."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from tests.support.faults.lab import ENDLESS, HERE, Lab, Run, kill, local, remote


def old_python(lab: Lab) -> Path:
    return lab.run(["local", f"local python={HERE / 'old_python.sh'}"])


def python_missing(lab: Lab) -> Path:
    return lab.run(["local", "beta python=/nowhere/bin/python3"])


def python_not_allowed(lab: Lab) -> Path:
    program = lab.folder / "python3"
    program.write_text("no program\n")
    return lab.run(["local", f"beta python={program}"])


def bashrc_exits(lab: Lab) -> Path:
    return lab.run(["local", remote("beta")], ssh=HERE / "leaving_ssh.sh")


def much_login_noise(lab: Lab) -> Path:
    return lab.run(
        ["local", remote("beta")], ssh=HERE / "noisy_ssh.sh", env={"LOGIN_NOISE": "2000"}
    )


def login_never_ends(lab: Lab) -> Path:
    return lab.run(["local", remote("beta")], "--start-timeout-s", "2", ssh=HERE / "silent_ssh.sh")


def other_protocol(lab: Lab) -> Path:
    return lab.run(["local", local(fault_peer="other_version")])


def killed_before_hello(lab: Lab) -> Path:
    program = lab.folder / "python3"
    program.write_text("#!/bin/sh\nkill -KILL $$\n")
    program.chmod(0o755)
    return lab.run(["local", f"local python={program}"])


def stuck_load(lab: Lab) -> Path:
    return lab.run(["local", local("hang@load")], "--start-timeout-s", "2")


def load_memory_error(lab: Lab) -> Path:
    return lab.run(["local", local("memory_error@load"), "local"])


def load_raises(lab: Lab) -> Path:
    return lab.run(["local", local("odd_error@load"), "local"])


def load_defect(lab: Lab) -> Path:
    return lab.run(["local", local("no_facts"), "local"])


def oom_killed_loading(lab: Lab) -> Path:
    return lab.run(["local", local("allocate@load", fault_cgroup=cgroup(lab)), "local"])


def oom_killed(lab: Lab) -> Path:
    return lab.run(["local", local("allocate@3", fault_cgroup=cgroup(lab)), "local"])


def cgroup(lab: Lab) -> Path:
    """Make a memory cgroup of 100 MB, of whichever version this machine has."""
    root = Path("/sys/fs/cgroup")
    v1 = (root / "memory").is_dir()
    made = (root / "memory" if v1 else root) / f"stageline-{os.getpid()}-{lab.folder.name}"
    made.mkdir()
    lab.stack.callback(made.rmdir)
    (made / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text("100000000")
    return made


def oom_killed_over_ssh(lab: Lab) -> Path:
    faulty = local("allocate@3", fault_cgroup=cgroup(lab)).removeprefix("local ")
    return lab.run(["local", f"beta code=installed {faulty}", "local"])


def killed_by_someone(lab: Lab) -> Path:
    return lab.run(["local", remote("beta"), "local"], *ENDLESS, act=kill(1))


def killed_local(lab: Lab) -> Path:
    return lab.run(["local", remote("beta")], *ENDLESS, act=kill(0))


def terminated_by_someone(lab: Lab) -> Path:
    return lab.run(["local", remote("beta")], *ENDLESS, act=kill(1, signal.SIGTERM))


def broken_heap(lab: Lab) -> Path:
    return lab.run(["local", local("bad_free@3"), "local"])


def segfault(lab: Lab) -> Path:
    return lab.run([local("segfault@3"), "local", "local"])


def bus_error(lab: Lab) -> Path:
    return lab.run(["local", "local", local("bus_error@2")])


def exits_with_7(lab: Lab) -> Path:
    return lab.run(["local", local("leave@3"), "local"])


def line_on_stdout(lab: Lab) -> Path:
    return lab.run(["local", local("print@3"), "local"])


def wrong_answer(lab: Lab) -> Path:
    return lab.run([local(fault_peer="answers_another")])


def stuck_op(lab: Lab) -> Path:
    return lab.run(["local", "local", local("hang@3")], deadlines_s={"op_s": 1.5})


def stopped_worker(lab: Lab) -> Path:
    return lab.run(
        ["local", remote("beta")],
        *ENDLESS,
        act=kill(1, signal.SIGSTOP),
        deadlines_s={"silence_s": 1.0},
    )


def context_full(lab: Lab) -> Path:
    return lab.run(["local", local("context_full@3"), "local"])


def device_full(lab: Lab) -> Path:
    return lab.run(["local", "local", local("device_full@2")])


def op_defect(lab: Lab) -> Path:
    return lab.run([local("odd_error@3"), "local", "local"])


def slow_stage(lab: Lab) -> Path:
    return lab.run(["local", local("slow:0.1"), "local", "local"], "--max-new-tokens", "12")


def clock_off(lab: Lab) -> Path:
    return lab.run(["local", local(fault_clock_hours=7)])


def ssh_client_killed(lab: Lab) -> Path:
    ssh = _staying_ssh(lab)

    def act(run: Run) -> None:
        worker = run.pid(1)
        run.ops(9)
        above = psutil.Process(worker).parents()
        client = next(process for process in above if str(ssh) in process.cmdline())
        os.kill(client.pid, signal.SIGKILL)

    return lab.run(["local", remote("beta")], *ENDLESS, act=act, ssh=ssh)


def _staying_ssh(lab: Lab) -> Path:
    """Write a stand-in for ssh that stays while the worker runs."""
    script = lab.folder / "ssh.sh"
    script.write_text('#!/bin/sh\nfor last; do :; done\nexec 3<&0\nsh -c "$last" <&3 &\nwait $!\n')
    script.chmod(0o755)
    return script


def recovered_kill(lab: Lab) -> Path:
    return lab.run(["local", remote("beta")], "--max-new-tokens", "300", act=kill(1), restarts=None)


def lost_for_good(lab: Lab) -> Path:
    """Every new process of the stage breaks as the one before."""
    return lab.run(["local", local("segfault@3"), "local"], restarts=2)


def recovered_crash(lab: Lab) -> Path:
    # Another life has another fault: the marker is gone after the first.
    once = lab.folder / "python3"
    once.write_text(
        f'#!/bin/sh\nif ! mkdir "{lab.folder}/once" 2>/dev/null; then FAULT=; export FAULT; fi\n'
        f'exec "{HERE / "python.sh"}" "$@"\n'
    )
    once.chmod(0o755)
    line = f"local python={once} env.FAULT=segfault@5"
    return lab.run(["local", line, "local"], "--max-new-tokens", "20", restarts=None)
