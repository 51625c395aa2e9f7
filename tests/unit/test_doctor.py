"""What the doctor makes of what hosts told: marks, sentences, exit codes."""

from __future__ import annotations

import ast
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from orchestrator.bundle.screen import PlainScreen, RichScreen
from orchestrator.doctor import probe
from orchestrator.doctor.command import exit_code
from orchestrator.doctor.judge_machine import judge_clock, judge_disk, judge_link, judge_memory
from orchestrator.doctor.judge_python import (
    compare_versions,
    judge_code,
    judge_device,
    judge_packages,
    judge_python,
)
from orchestrator.doctor.link import Pings, Rate
from orchestrator.doctor.mend import Mend
from orchestrator.doctor.result import HostReport, Result, Status
from orchestrator.doctor.show import show_reports
from orchestrator.doctor.subject import subjects_of
from orchestrator.hosts import parse_hosts
from orchestrator.setting import Setting
from orchestrator.setup.pins import read_pins
from orchestrator.specs import WorkerOptions
from orchestrator.stage_specs import Ways
from orchestrator.timeouts import Timeouts
from orchestrator.visit.check import Check
from orchestrator.visit.greeting import Interpreter
from worker.protocol.exits import ExitCode

GIB = 1 << 30
SETUP = "orchestrator setup --hosts h.txt"
CARD = {"name": "NVIDIA H200", "total_bytes": 141 * GIB, "free_bytes": 140 * GIB, "driver": "5"}
FITTING = {
    "torch": "2.13.0+cpu",
    "transformers": "5.24.1",
    "accelerate": "1.15.0",
    "bitsandbytes": "0.50.2",
    "llvmlite": "0.50.0",
    "safetensors": "0.8.0",
    "psutil": "7.2.2",
    "huggingface_hub": "2.4.0",
    "jinja2": "3.1.6",
    "filelock": "4.3.1",
}


def mend_of(line: str = "gpu1") -> Mend:
    """Return the only host of a hosts file."""
    setting = Setting(
        parse_hosts(line.encode()), WorkerOptions(), Ways(hosts_name="h.txt"), Timeouts()
    )
    (subject,) = subjects_of(setting)
    return Mend(subject, "h.txt", "/opt/py")


def test_lines_of_one_place_are_looked_at_once_with_all_that_they_want() -> None:
    lines = "gpu1 device=cuda:0 memory=2GiB\nspare gpu1 device=cuda:1\ngpu1 python=/p\nlocal\n"
    setting = Setting(
        parse_hosts(lines.encode()), WorkerOptions(), Ways(hosts_name="h.txt"), Timeouts()
    )
    found = [
        (subject.name, subject.spec.python, subject.is_spare, subject.devices, subject.memory_bytes)
        for subject in subjects_of(setting)
    ]
    assert found == [
        ("h.txt:1", None, False, ("cuda:0", "cuda:1"), 2 * GIB),
        ("h.txt:3", "/p", False, ("auto",), 0),
        ("h.txt:4", None, False, ("auto",), 0),
    ]


@pytest.mark.parametrize(
    ("line", "version", "expected"),
    [
        ("gpu1", (3, 13, 1), Result(Status.OK, "has Python 3.13.1")),
        (
            "gpu1",
            (3, 10, 12),
            Result(
                Status.FAILED,
                "has Python 3.10.12 as /opt/py",
                "3.11 or newer",
                "orchestrator setup --hosts h.txt, which looks for python3.11 and newer there too",
            ),
        ),
        (
            "gpu1 python=/opt/py",
            (2, 7, 18),
            Result(
                Status.FAILED,
                "has Python 2.7.18 as /opt/py",
                "3.11 or newer",
                "give another python= in h.txt:1, or leave it out there and run orchestrator setup "
                "--hosts h.txt",
            ),
        ),
    ],
)
def test_python_must_be_new_enough(
    line: str, version: tuple[int, int, int], expected: Result
) -> None:
    assert judge_python(Interpreter(version, "/opt/py"), mend_of(line)) == expected


@pytest.mark.parametrize(
    ("line", "change", "expected"),
    [
        ("gpu1", {}, Result(Status.OK, "has torch 2.13.0+cpu")),
        (
            "gpu1",
            {"torch": None, "jinja2": None, "transformers": "4.57.0"},
            Result(
                Status.FAILED,
                "has transformers 4.57.0 and lacks torch and jinja2",
                "torch<2.14,>=2.13, transformers~=5.24.0, jinja2~=3.1",
                "orchestrator setup --hosts h.txt",
            ),
        ),
        (
            "bob@gpu1:22 python=/opt/py",
            {"bitsandbytes": None},
            Result(
                Status.WARNING,
                "lacks bitsandbytes",
                "bitsandbytes~=0.50.2",
                """ssh -p 22 bob@gpu1 "/opt/py -m pip install 'bitsandbytes~=0.50.2'\"""",
            ),
        ),
        (
            "gpu1 quantization=nf4",
            {"bitsandbytes": None},
            Result(
                Status.FAILED,
                "lacks bitsandbytes",
                "bitsandbytes~=0.50.2",
                "orchestrator setup --hosts h.txt",
            ),
        ),
    ],
)
def test_packages_must_be_in_their_ranges(
    line: str, change: dict[str, str | None], expected: Result
) -> None:
    assert judge_packages({**FITTING, **change}, mend_of(line), read_pins()) == expected


def test_setup_is_told_to_reach_the_hosts_as_they_were_reached() -> None:
    ways = Ways(hosts_name="my hosts", ssh_command="ssh -F cfg", accept_new_host_key=True)
    (subject,) = subjects_of(Setting(parse_hosts(b"gpu1"), WorkerOptions(), ways, Timeouts()))
    expected = "orchestrator setup --hosts 'my hosts' --ssh-command 'ssh -F cfg' --accept-new"
    assert Mend(subject, "my hosts").install(["torch"]) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "gpu1 python=/usr/bin/python3",
            f"give another python= in h.txt:1, or leave it out there and run {SETUP}",
        ),
        ("local python=/usr/bin/python3", "give the python= of a virtual environment in h.txt:1"),
        ("local", "run orchestrator from a virtual environment that has what is needed"),
    ],
)
def test_pip_is_not_advised_where_the_system_forbids_it(line: str, expected: str) -> None:
    assert replace(mend_of(line), is_managed=True).install(["torch"]) == expected


@pytest.mark.parametrize(
    ("line", "version", "status"),
    [
        ("gpu1", None, Status.OK),
        ("local", None, Status.OK),
        ("gpu1 code=installed", "0.0.1", Status.FAILED),
        ("gpu1 code=installed", None, Status.FAILED),
    ],
)
def test_installed_code_must_be_of_this_version(
    line: str, version: str | None, status: Status
) -> None:
    assert judge_code(version, mend_of(line)).status is status


@pytest.mark.parametrize(
    ("line", "gpus", "torch", "status"),
    [
        ("gpu1", [], "2.13.0", Status.OK),
        ("gpu1", [CARD], "2.13.0", Status.OK),
        ("gpu1", [CARD], "2.13.0+cpu", Status.WARNING),
        ("gpu1 device=cpu", [CARD], "2.13.0+cpu", Status.OK),
        ("gpu1 device=cuda:1", [CARD], "2.13.0", Status.FAILED),
        ("gpu1 device=cuda", [CARD], "2.13.0+cpu", Status.FAILED),
        ("gpu1 device=cuda", [CARD], "2.13.0+cu130", Status.OK),
        ("gpu1 slots=4", [], "2.13.0", Status.OK),
        ("gpu1 slots=5", [], "2.13.0", Status.WARNING),
        ("gpu1 slots=5", [CARD], "2.13.0+cu130", Status.OK),
    ],
)
def test_the_device_that_is_asked_for_must_be_there_with_cores_for_its_stages(
    line: str, gpus: list[dict[str, Any]], torch: str, status: Status
) -> None:
    assert judge_device(gpus, mend_of(line), torch, cores=2).status is status


@pytest.mark.parametrize(
    ("line", "free_bytes", "status"),
    [
        ("gpu1", GIB, Status.OK),
        ("gpu1", GIB - 1, Status.FAILED),
        ("gpu1 memory=3GiB slots=2", 5 * GIB, Status.WARNING),
        ("gpu1 memory=3GiB slots=2", 6 * GIB, Status.OK),
    ],
)
def test_memory_must_be_free(line: str, free_bytes: int, status: Status) -> None:
    machine = {"free_bytes": free_bytes, "total_bytes": 64 * GIB, "gpus": []}
    assert judge_memory(machine, mend_of(line)).status is status


def test_a_folder_that_cannot_be_written_is_told_with_the_command() -> None:
    disk = {"folder": "/data/w", "existing": "/data", "free_bytes": GIB, "is_writable": False}
    assert judge_disk(disk, mend_of()) == Result(
        Status.FAILED,
        "may not write in /data",
        "a folder that can be written, for weights in /data/w",
        """ssh gpu1 'sudo install -d -o "$(id -un)" /data/w'""",
    )


@pytest.mark.parametrize(
    ("ahead_s", "status"), [(1.9, Status.OK), (-2.5, Status.WARNING), (86400.0, Status.WARNING)]
)
def test_clocks_must_agree_within_two_seconds(ahead_s: float, status: Status) -> None:
    assert judge_clock(Pings(1.0, ahead_s), mend_of()).status is status


@pytest.mark.parametrize(
    ("round_trip_ms", "up", "down", "status"),
    [
        (20.0, Rate(2e6), Rate(2e6), Status.OK),
        (20.0, Rate(2e6), Rate(9e5), Status.WARNING),
        (20.0, Rate(3e4, is_bound=True), None, Status.WARNING),
        (150.0, Rate(1e8), Rate(1e8), Status.WARNING),
    ],
)
def test_slow_links_are_warned_of(
    round_trip_ms: float, up: Rate, down: Rate | None, status: Status
) -> None:
    assert judge_link(Pings(round_trip_ms, 0.0), up, down).status is status


def report_of(host: str, **packages: str) -> HostReport:
    """Return a report of a host that is well."""
    results = dict.fromkeys(Check, Result(Status.OK))
    return HostReport("h.txt:1", host, results=results, facts={"packages": packages})


def test_a_host_with_another_version_than_the_others_is_warned_of() -> None:
    reports = [
        report_of(f"gpu{i}", torch=torch, transformers="5.24.0")
        for i, torch in enumerate(("2.13.0", "2.13.1", "2.13.0+cpu"))
    ]
    compare_versions(reports, [mend_of()] * 3)
    assert [report.complaints() for report in reports] == [
        [],
        [
            (
                Check.PACKAGES,
                Result(
                    Status.WARNING,
                    "has torch 2.13.1, other hosts have 2.13.0: answers can differ in their bits",
                    "the same torch on all hosts",
                    "orchestrator setup --hosts h.txt",
                ),
            )
        ],
        [],
    ]


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ({}, ExitCode.OK),
        ({Check.CLOCK: Status.WARNING}, ExitCode.OK),
        ({Check.MODEL: Status.FAILED}, ExitCode.LOAD_FAILED),
        ({Check.MODEL: Status.FAILED, Check.DISK: Status.FAILED}, ExitCode.PEER_GONE),
    ],
)
def test_only_crosses_make_the_exit_code(statuses: dict[Check, Status], code: ExitCode) -> None:
    report = report_of("gpu1")
    report.results |= {check: Result(status) for check, status in statuses.items()}
    assert exit_code([report_of("gpu0"), report]) is code


def test_the_table_and_the_lines() -> None:
    well = replace(report_of("gpu0"), is_spare=True)
    well.facts = {
        "python": {"version": "3.11.2"},
        "packages": {"torch": "2.13.0", "transformers": "5.24.0"},
        "machine": {"cores": 8, "gpus": [CARD, CARD], "free_bytes": GIB},
        "disk": {"free_bytes": 80 * GIB},
        "link": {
            "clock_ahead_s": -0.04,
            "round_trip_ms": 0.4,
            "up_bytes_per_s": 95e6,
            "down_bytes_per_s": None,
        },
    }
    ill = HostReport("h.txt:2", "gpu1")
    ill.results = {
        Check.NAME: Result(Status.OK),
        Check.PORT: Result(Status.FAILED, "refuses SSH connections", "an sshd", "start sshd"),
    }
    out = io.StringIO()
    show_reports([well, ill], PlainScreen(out), with_model=False, can_tick=True)
    assert out.getvalue() == (
        "  host          name  port  key  login  python  packages  code  device  memory  disk"
        "  clock  link\n"
        "  gpu0 (spare)  ✓     ✓     ✓    ✓      ✓       ✓         ✓     ✓       ✓       ✓ "
        "    ✓      ✓\n"
        "  gpu1          ✓     ✗     -    -      -       -         -     -       -       - "
        "    -      -\n"
        "\n"
        "  host          python  torch   transformers  device           memory free  disk free"
        "   clock  round trip       up  down\n"
        "  gpu0 (spare)  3.11.2  2.13.0  5.24.0        NVIDIA H200 x 2   280.00 GiB  80.00 GiB"
        "  +0.0 s     0.40 ms  95 MB/s     -\n"
        "\n"
        "✗ gpu1 (port) refuses SSH connections; needed: an sshd\n"
        "    start sshd\n"
    )


def test_a_narrow_terminal_cuts_neither_hosts_nor_commands() -> None:
    reports = [report_of(f"rather-a-long-name-of-gpu{n}.example.org") for n in (0, 1)]
    command = f"ssh gpu0 '{' '.join(['sudo reboot'] * 12)}'"
    reports[0].results[Check.DISK] = Result(Status.FAILED, "has no room", mend=command)
    out = io.StringIO()
    screen = RichScreen(Console(file=out, width=80))
    show_reports(reports, screen, with_model=True, can_tick=True)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    heads = [line.split() for line in lines if line.startswith("host ")]
    tables = lines[: lines.index("")]
    assert (
        [word for head in heads for word in head if word != "host"],
        [sum(report.label in line for line in tables) for report in reports],
        max(map(len, tables)) <= 80,
        f"    {command}" in lines,
    ) == (list(Check), [len(heads)] * 2, True, True)


def test_an_old_python_can_read_the_program_that_looks() -> None:
    ast.parse(Path(probe.__file__).read_text(), feature_version=(3, 7))


def test_the_program_counts_memory_as_psutil_does() -> None:
    total_bytes, free_bytes = probe.memory()
    told = psutil.virtual_memory()
    assert total_bytes == told.total
    assert abs(free_bytes - told.available) < GIB


@pytest.mark.parametrize("version", [2, 1])
def test_the_program_sees_the_tightest_cgroup(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, used, cached = {
        2: ("memory.max", "memory.current", "inactive_file"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }[version]
    inner = tmp_path / ("memory/a/b" if version == 1 else "a/b")
    inner.mkdir(parents=True)
    for folder, limit_bytes in ((inner, "max"), (inner.parent, str(4 * GIB))):
        (folder / limit).write_text(f"{limit_bytes}\n")
        (folder / used).write_text(f"{3 * GIB}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{cached} {GIB}\n")
    member = tmp_path / "member"
    member.write_text("4:memory:/a/b\n1:cpu:/x\n" if version == 1 else "0::/a/b\n")
    read = probe.read
    monkeypatch.setattr(probe, "CGROUPS", tmp_path)
    monkeypatch.setattr(
        probe, "read", lambda path: read(member if str(path) == "/proc/self/cgroup" else path)
    )
    assert probe.cgroup_free_bytes() == [2 * GIB]
