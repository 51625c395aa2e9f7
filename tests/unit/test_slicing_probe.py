"""A model type nobody has tried is tried at load, and the finding agrees with the full table."""

from __future__ import annotations

import pytest
import torch

from tools.tiny_configs import recipe_config
from worker.model import internals
from worker.model.architecture import Architecture
from worker.model.probe import probe
from worker.model.support import Mode
from worker.model.verdict import verified_types

torch.set_num_threads(1)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "gpt2", "hy_v4", "mamba", "zamba2"])
def test_the_probe_finds_the_mode_of_the_table(model_type: str) -> None:
    config = recipe_config(model_type)
    found = probe(Architecture(config, internals.causal_lm_class(config)))
    assert (found.mode, found.source) == (verified_types()[model_type].mode, "probe")


def test_a_refusal_by_the_probe_says_why() -> None:
    config = recipe_config("hy_v4")
    found = probe(Architecture(config, internals.causal_lm_class(config)))
    assert found.mode is Mode.REFUSED and "split form fails" in (found.reason or "")


def test_a_model_that_keeps_its_state_in_its_modules_is_refused() -> None:
    config = recipe_config("recurrent_gemma")
    found = probe(Architecture(config, internals.causal_lm_class(config)))
    assert (found.mode, verified_types()["recurrent_gemma"].mode) == (Mode.REFUSED, Mode.REFUSED)
    assert found.reason == "its split form gives other logits than the whole"


def test_the_probe_leaves_the_processes_random_numbers_alone() -> None:
    config = recipe_config("llama")
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    probe(Architecture(config, internals.causal_lm_class(config)))
    assert torch.equal(torch.rand(1), expected)
