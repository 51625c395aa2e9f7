"""Answers held to JSON by split stages are those of plain transformers under the same masks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bundle.records import NoRecorder
from orchestrator.generate import TokenOutput
from orchestrator.pipeline import Pipeline
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from tests.support.schema_rules import fits

PREFILL_CHUNK = 256
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "chess"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
ANY_OBJECT = {"type": "object"}
# What may stand between the parts of JSON, as docs/structured.md tells it.
WHITE_SPACE = "[ ]?|\\n[ ]{0,24}"
ASKED: list[tuple[str, dict[str, Any], int]] = [
    ("Describe Ada, 36, who likes chess and tea, as JSON.", SCHEMA, 50),
    ("Give the capital of France as JSON.", ANY_OBJECT, 16),
]

pytestmark = [pytest.mark.demo_model, pytest.mark.slow, pytest.mark.timeout(300)]


def messages_of(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def rule_of(schema: dict[str, Any]) -> str:
    held = {**schema, "x-guidance": {"whitespace_pattern": WHITE_SPACE}}
    return f'%llguidance {{"no_forcing": true}}\nstart: %json {json.dumps(held)}\n'


def oracle(model: Path) -> subprocess.Popen[bytes]:
    """Start plain transformers, which computes beside the workers."""
    questions = [
        {"messages": messages_of(text), "grammar": rule_of(schema), "max_new_tokens": limit}
        for text, schema, limit in ASKED
    ]
    asked = {"model": str(model), "prefill_chunk": PREFILL_CHUNK, "questions": questions}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.grammar_oracle"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked).encode())
    process.stdin.close()
    return process


async def answer_all(model: Path) -> list[list[TokenOutput]]:
    """Answer everything at once."""
    options = WorkerOptions(model_id=str(model), threads=1)
    specs = [StageSpec(stage=i, num_stages=2, options=options) for i in range(2)]
    async with await Stages.start(specs) as stages:
        pipeline = Pipeline(stages, NoRecorder())
        grammars = await pipeline.grammars()

        async def one(text: str, schema: dict[str, Any], limit: int) -> list[TokenOutput]:
            request = GenerationRequest(
                request_id=text,
                messages=tuple(messages_of(text)),
                grammar=grammars.json_schema(schema),
                max_new_tokens=limit,
                prefill_chunk=PREFILL_CHUNK,
            )
            return [output async for output in pipeline.submit(request)]

        return await asyncio.gather(*(one(*asked) for asked in ASKED))


def text_of(outputs: Sequence[TokenOutput]) -> str:
    return "".join(output.text for output in outputs)


def test_split_stages_choose_as_transformers_under_the_same_masks(demo_model_path: Path) -> None:
    with oracle(demo_model_path) as process:
        answers = asyncio.run(answer_all(demo_model_path))
        assert process.stdout is not None
        expected = json.loads(process.stdout.read())
    assert [[output.token_id for output in answer] for answer in answers] == expected
    described, _ = answers
    finish = described[-1].finish
    assert finish is not None
    assert (finish.reason, fits(json.loads(text_of(described)), SCHEMA)) == ("stop", True)
