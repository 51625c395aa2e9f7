"""A kill for want of memory is told from any other by what the kernel says of that process."""

from __future__ import annotations

import re

import pytest

from orchestrator.oom import kernel_lines, oom_evidence

OURS = "kernel: Memory cgroup out of memory: Killed process 4711 (python) total-vm:411864kB"
OTHERS = "kernel: Out of memory: Killed process 815 (firefox) total-vm:9411864kB"


@pytest.mark.parametrize(
    ("lines", "pid", "kills_before", "shown"),
    [
        ([OURS], 4711, 3, "log"),
        (["Traceback", OURS, "kernel: oom_kill 4"], 4711, 3, "log"),
        ([OTHERS], 4711, 3, None),
        ([OTHERS, "kernel: oom_kill 3"], 4711, 3, None),
        (["kernel: oom_kill 4"], 4711, 3, "counter"),
        (["kernel: oom_kill 4"], 4711, None, None),
        ([OURS], None, 3, None),
        ([], 4711, 3, None),
        (["I read that oom_kill 9 is bad"], 4711, 3, None),
    ],
)
def test_only_the_kernel_s_word_on_this_process_counts(
    lines: list[str], pid: int | None, kills_before: int | None, shown: str | None
) -> None:
    found = oom_evidence(lines, pid, kills_before)
    kind = None if found is None else "log" if "Killed process" in found[1] else "counter"
    assert kind == shown


def test_the_kernel_here_is_quoted_only_where_it_killed_meanwhile() -> None:
    assert [kernel_lines(2**40, before) for before in (None, 2**40)] == [[], []]
    assert all(re.fullmatch(r"oom_kill \d+", line) for line in kernel_lines(2**40, -1))
