"""What is asked of torch's CUDA graphs, in which order; there is no GPU behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from worker.backends.transformers.device import check_engine
from worker.failures import LoadFailed
from worker.model.graphs import CudaGraphs
from worker.protocol.exits import ExitCode

CAPTURE = ["synchronize", "to the side stream", "work", "synchronize", "begin in pool 7", "work"]


class Graph:
    """Writes down what it is asked to do; a capture that failed is refused at its end."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def capture_begin(self, *, pool: int, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self._told.append(f"begin in pool {pool}")

    def capture_end(self) -> None:
        self._told.append("end")
        if "failure" in self._told:
            raise RuntimeError("operation failed due to a previous error during capture")

    def replay(self) -> None:
        self._told.append("replay")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of `torch.cuda`, as it comes."""
    told: list[str] = []

    @contextmanager
    def stream(_stream: object) -> Iterator[None]:
        told.append("to the side stream")
        try:
            yield
        finally:
            told.append("back")

    fakes: dict[str, Callable[..., object]] = {
        "CUDAGraph": lambda: Graph(told),
        "Stream": lambda _device: object(),
        "graph_pool_handle": lambda: 7,
        "synchronize": lambda _device: told.append("synchronize"),
        "stream": stream,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return told


def test_work_is_warmed_up_captured_and_replayed_once(told: list[str]) -> None:
    def work() -> list[torch.Tensor]:
        told.append("work")
        return []

    CudaGraphs(torch.device("cuda:0")).record(work)
    assert told == [*CAPTURE, "end", "back", "replay"]


def test_a_capture_that_fails_is_ended_and_tells_why(told: list[str]) -> None:
    def work() -> list[torch.Tensor]:
        told.append("work")
        if told.count("work") == 2:
            told.append("failure")
            raise RuntimeError("operation not permitted when stream is capturing")
        return []

    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        CudaGraphs(torch.device("cuda:0")).record(work)
    assert told == [*CAPTURE, "failure", "end", "back"]


def test_graphs_on_another_device_are_refused_by_its_name() -> None:
    for engine, device in (("graphs", "cuda:1"), ("fast", "cpu"), ("stock", "mps")):
        check_engine(engine, device)
    with pytest.raises(LoadFailed) as refused:
        check_engine("graphs", "cpu")
    assert (refused.value.code, refused.value.text) == (
        ExitCode.USAGE,
        (
            "--engine graphs needs a CUDA device, and this worker computes on cpu; "
            "give --device cuda, or leave --engine graphs away"
        ),
    )
