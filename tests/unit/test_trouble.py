"""Errors of a run: one sentence, the right exit code, and the place."""

from __future__ import annotations

import signal

import pytest

from orchestrator.answer import Answer
from orchestrator.failures import Crashed, NotReady, OpRejected, PipelineMismatch, Scene
from orchestrator.generate import Finish, TokenOutput
from orchestrator.hosts import HostsError
from orchestrator.interruption import Interrupted
from orchestrator.layer_count import ModelUnreadable
from orchestrator.layer_plan import PlanError
from orchestrator.meter import Timings
from orchestrator.prompt import PromptError
from orchestrator.request import RequestRefused
from orchestrator.text_output import OutputClosed, OutputFailed
from orchestrator.trouble import trouble_of
from worker.protocol.exits import ExitCode

SCENE = Scene(stage=1, host="gpu1", phase="idle")


@pytest.mark.parametrize(
    ("error", "kind", "exit_code"),
    [
        (HostsError("x"), "usage", 2),
        (PlanError("x"), "usage", 2),
        (ModelUnreadable("x"), "model_unreadable", 3),
        (PromptError("x"), "usage", 2),
        (RequestRefused("x"), "usage", 2),
        (PipelineMismatch("x"), "usage", 2),
        (Crashed(SCENE, "died"), "crashed", 5),
        (NotReady(SCENE, "has no room", ExitCode.OUT_OF_MEMORY), "not_ready", 4),
        (NotReady(SCENE, "has no model", ExitCode.LOAD_FAILED), "not_ready", 3),
        (OpRejected(0, "local", "tokenize", "bad_field", "no system role"), "op_rejected", 2),
        (OpRejected(0, "local", "forward", "out_of_memory", "x"), "op_rejected", 4),
        (OpRejected(0, "local", "forward", "internal", "x"), "op_rejected", 1),
        (OpRejected(0, "local", "forward", "of_a_later_version", "x"), "op_rejected", 1),
        (Interrupted(signal.SIGINT), "interrupted", 130),
        (Interrupted(signal.SIGTERM), "interrupted", 143),
        (OutputClosed("x"), "output_closed", 0),
        (OutputFailed("x"), "output_failed", 1),
        (ZeroDivisionError("x"), "uncaught", 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_error_has_its_kind_and_exit_code(error: Exception, kind: str, exit_code: int) -> None:
    trouble = trouble_of(error)
    assert (trouble.kind, trouble.exit_code) == (kind, exit_code)
    assert trouble.expected == (kind != "uncaught")


def test_a_stage_failure_names_stage_and_host() -> None:
    assert trouble_of(Crashed(SCENE, "died")).fields() == {
        "kind": "crashed",
        "message": "stage 1 on gpu1 died",
        "exit_code": 5,
        "stage": 1,
        "host": "gpu1",
    }


@pytest.mark.parametrize(
    ("error", "reason"),
    [(Crashed(SCENE, "died"), "error"), (Interrupted(signal.SIGINT), "cancelled"), (None, "stop")],
)
def test_no_answer_that_was_cut_short_says_stop(error: Exception | None, reason: str) -> None:
    answer = Answer()
    timings = Timings(ttft_ms=1.0, tokens_per_s=2.0, duration_ms=3.0)
    finish = Finish(reason="stop", matched_stop=None, timings=timings)
    answer.take(TokenOutput(token_id=5, text="a", logprob=None, prompt_tokens=2, finish=finish))
    got = answer.as_json(trouble_of(error) if error else None)
    assert (got["finish_reason"], got["text"], got["usage"]["total_tokens"]) == (reason, "a", 3)
    assert ("error" in got) == (error is not None)
