"""Stages are one model: what they say of it agrees, the commit included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.failures import PipelineMismatch
from orchestrator.pipeline_facts import facts_of
from tests.support.stages import stub_specs
from worker.protocol.ready import Ready


def ready(start: int, end: int, commit: str | None) -> Ready:
    return Ready(
        pid=1,
        protocol_version="1.0",
        version="1",
        layer_range=(start, end),
        total_blocks=8,
        hidden_dim=4,
        vocab_size=9,
        commit=commit,
    )


@pytest.mark.parametrize("other", ["a" * 40, None])
def test_one_commit_or_an_unknown_one_is_a_pipeline(other: str | None) -> None:
    facts = facts_of(stub_specs(2), [ready(0, 4, "a" * 40), ready(4, 8, other)])
    assert facts.num_layers == 8


def test_stages_of_two_commits_are_refused() -> None:
    with pytest.raises(PipelineMismatch) as caught:
        facts_of(stub_specs(2), [ready(0, 4, "a" * 40), ready(4, 8, "b" * 40)])
    assert str(caught.value) == (
        f"stage 1 on local has commit {'b' * 40}, stage 0 on local has {'a' * 40}; give every "
        "stage the same model and revision"
    )


def test_a_pass_serves_as_many_rows_as_every_stage_can() -> None:
    stages = [replace(ready(0, 4, None), max_rows=16), replace(ready(4, 8, None), max_rows=4)]
    assert facts_of(stub_specs(2), stages).max_rows == 4
