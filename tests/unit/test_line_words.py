"""A worker that refuses a key of its line is quoted with the key and the line, not with a flag."""

from __future__ import annotations

import pytest

from orchestrator.hosts import parse_hosts
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stage_specs import Place, Ways, spec_of


def spec(line: str, ways: Ways) -> StageSpec:
    (entry,) = parse_hosts(f"{line}\n".encode())
    options = WorkerOptions(model_id="m", device="cpu")
    return spec_of(Place(entry, 0, 1), options, ways, local_workers=1)


@pytest.mark.parametrize(
    ("line", "said", "retold", "words"),
    [
        (
            "local device=cuda:0",
            "--device cuda:0 is not there; give --device cpu",
            "device=cuda:0 is not there; give device=cpu",
            "device=cuda:0 stands",
        ),
        (
            "gpu1 engine=graphs device=cpu",
            "--engine graphs needs CUDA; give --device cuda, or leave --engine graphs away",
            "engine=graphs needs CUDA; give device=cuda, or leave engine=graphs away",
            "device=cpu and engine=graphs stand",
        ),
        (
            "gpu1 quantization=int8-weight",
            "--quantization int8-weight works on CPUs alone; use --device cpu",
            "quantization=int8-weight works on CPUs alone; use --device cpu",
            "quantization=int8-weight stands",
        ),
        (
            "gpu1 memory=20MiB",
            "needs 30 MiB of 20 MiB free (--memory-limit of 20 MiB)",
            "needs 30 MiB of 20 MiB free (memory= of 20 MiB)",
            "memory= stands",
        ),
        (
            "gpu1 env.STAGELINE_ENGINE=quick",
            "environment variable STAGELINE_ENGINE: quick is none",
            "environment variable STAGELINE_ENGINE: quick is none",
            "env.STAGELINE_ENGINE= stands",
        ),
    ],
)
def test_flags_are_told_as_keys_of_the_line(line: str, said: str, retold: str, words: str) -> None:
    assert spec(line, Ways(hosts_name="h.txt")).line.retold(said) == (
        f"{retold}; {words} in h.txt:1, and the line wins: change it there"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gpu1 device=cuda:0", "there is no folder /m"),
        ("gpu1", "--device cpu is odd"),
    ],
)
def test_what_the_line_does_not_set_is_told_as_it_is(line: str, said: str) -> None:
    assert spec(line, Ways(hosts_name="h.txt")).line.retold(said) == said


def test_without_a_hosts_file_the_flags_stay() -> None:
    assert spec("local device=cpu", Ways()).line.retold("--device cpu is odd") == (
        "--device cpu is odd"
    )
