"""Runs with nothing wrong, in which something might be taken for a fault."""

from __future__ import annotations

from pathlib import Path

from tests.support.faults.lab import HERE, Lab, local, remote


def two_stages(lab: Lab) -> Path:
    return lab.run(["local", "local"])


def one_stage(lab: Lab) -> Path:
    return lab.run(["local"])


def eight_stages(lab: Lab) -> Path:
    return lab.run(["local slots=8"])


def equally_slow_stages(lab: Lab) -> Path:
    return lab.run([local("slow:0.03")] * 3, "--max-new-tokens", "12")


def slow_to_start(lab: Lab) -> Path:
    program = lab.folder / "python3"
    program.write_text(f'#!/bin/sh\nsleep 1.5\nexec "{HERE / "python.sh"}" "$@"\n')
    program.chmod(0o755)
    return lab.run(["local", f"local python={program}"])


def sampled(lab: Lab) -> Path:
    return lab.run(["local", "local"], "--temperature", "1", "--seed", "5", "--stop", "zzz")


def json_answer(lab: Lab) -> Path:
    return lab.run(["local", "local"], "--json", "--prefill-chunk", "1")


def one_token(lab: Lab) -> Path:
    return lab.run(["local", "local"], "--max-new-tokens", "1")


def a_little_login_noise(lab: Lab) -> Path:
    return lab.run(["local", remote("beta")], ssh=HERE / "noisy_ssh.sh")


def long_answer(lab: Lab) -> Path:
    return lab.run(["local", "local", "local"], "--max-new-tokens", "200")
