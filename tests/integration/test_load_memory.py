"""A stage takes what was predicted, and loading takes hardly more than the stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.memory_probe import Case, Measured, measure

LAYERS = 30
TOLERANCE = 0.10


def smollm2(folder: Path, quantization: str, *, mmap: bool = True) -> Measured:
    """Measure the second half of SmolLM2 in a fresh process."""
    case = Case("smollm2", str(folder), 15, LAYERS, LAYERS, quantization, mmap, 256, 128)
    return measure(case)


@pytest.mark.slow
@pytest.mark.demo_model
@pytest.mark.parametrize("quantization", ["bfloat16", "int8", "nf4", "int8-weight", "int4-weight"])
def test_prediction_is_within_10_percent_of_resident_memory(
    demo_model_path: Path, quantization: str
) -> None:
    measured = smollm2(demo_model_path, quantization)
    assert abs(measured.error) <= TOLERANCE, measured
    assert measured.predicted_weights_bytes == measured.held_weights_bytes
    assert measured.predicted_kv_bytes == measured.kv_bytes
    if quantization == "bfloat16":
        assert measured.load_peak_bytes <= measured.load_bound_bytes, measured


@pytest.mark.slow
@pytest.mark.demo_model
def test_without_mmap_loading_peaks_at_the_stage_and_10_percent(demo_model_path: Path) -> None:
    measured = smollm2(demo_model_path, "bfloat16", mmap=False)
    assert measured.load_peak_bytes <= measured.load_bound_bytes, measured
