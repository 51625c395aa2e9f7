"""The stub answers the recorded transcripts: values as they are, errors in the same shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker_process import stub_worker
from worker.protocol.schema import ErrorCode

TRANSCRIPTS = sorted((Path(__file__).parents[1] / "data" / "conformance").glob("*.jsonl"))


def comparable(reply: dict[str, Any]) -> dict[str, Any]:
    """Leave of an error what is fixed: its keys and whose it is; `code` is ours to add."""
    if "error" not in reply:
        return reply
    assert isinstance(reply["error"], str) and reply["error"]
    code = reply.get("code", ErrorCode.INTERNAL)
    assert code in set(ErrorCode)
    return {key: value for key, value in reply.items() if key != "code"} | {"error": "…"}


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_stub_answers_as_recorded(path: Path) -> None:
    stage, num_stages = (int(part) for part in path.stem.removeprefix("stage").split("-of-"))
    pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with stub_worker(stage=stage, num_stages=num_stages) as worker:
        worker.send(*(pair["line"].encode("utf-8") + b"\n" for pair in pairs))
        worker.stdin.close()
        assert worker.end() == 0
        replies = [comparable(reply) for reply in worker.replies()]
    assert replies == [comparable(pair["reply"]) for pair in pairs]


def test_transcripts_are_there() -> None:
    assert len(TRANSCRIPTS) == 6
