"""A start that remembers an earlier one gives the same bits, with nothing tried but those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.tiny import (
    reference_logits,
    reference_model,
    same,
    single_prompt,
    split_logits,
    tiny_checkpoint,
)
from tests.support.worker_process import WorkerProcess
from worker.model import dry_run, turned_linear
from worker.model.circumstances import circumstances, model_circumstances
from worker.model.engine import engaged
from worker.model.load import load_stage, prepare_stage
from worker.model.load_options import LoadOptions
from worker.model.memory import estimate_memory
from worker.model.run import StageRunner
from worker.model.step_trial import StepTrial
from worker.protocol.stage import StageSlice
from worker.remembered import Remembered

LAYERS = 6

torch.set_num_threads(1)


class Altered(Remembered):
    """Gives kept tapes that are not what was kept."""

    alter: Callable[[dict[str, Any]], object]

    def get(self, kind: str, depends: object) -> Any:
        kept = super().get(kind, depends)
        if kind == "decode-step" and kept is not None:
            type(self).alter(kept)
        return kept


def opened(folder: Path, remembered: Remembered) -> list[StageRunner]:
    """Two stages of a model, engaged as a worker does."""
    slices = (StageSlice(0, 3, LAYERS), StageSlice(3, LAYERS, LAYERS))
    return [engaged(load_stage(folder, own, LoadOptions()), remembered) for own in slices]


def count(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """Note the calls of a function from here on."""
    calls, true = [], getattr(owner, name)

    def counted(*args: Any, **named: Any) -> Any:
        calls.append(name)
        return true(*args, **named)

    monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama") / "m", "llama")


@pytest.fixture(scope="module")
def wanted(llama: Path) -> list[torch.Tensor]:
    return reference_logits(reference_model(llama), single_prompt(160))


@pytest.mark.parametrize("model_type", ["llama", "opt", "gpt_neox", "gemma", "granite"])
def test_a_remembered_step_is_compared_and_not_written_down(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoint(tmp_path / "m", model_type)
    wanted = reference_logits(reference_model(folder), single_prompt(160))
    kept = Remembered(tmp_path / "kept")
    assert all(stage.decode_step for stage in opened(folder, kept))
    written = count(monkeypatch, StepTrial, "written_down")
    compared = count(monkeypatch, StepTrial, "compare")
    stages = opened(folder, kept)
    assert (len(written), len(compared), all(stage.decode_step for stage in stages)) == (0, 2, True)
    assert same(wanted, split_logits(stages, single_prompt(160)))


def swap_weights(kept: dict[str, Any]) -> None:
    names = kept["tape"]["outside"]
    alike = [i for i, name in enumerate(names) if name.endswith("up_proj.weight")]
    names[alike[0]], names[alike[1]] = names[alike[1]], names[alike[0]]


@pytest.mark.parametrize(
    "alter",
    [
        swap_weights,
        lambda kept: kept["tape"].update(output=[0, 0]),
        lambda kept: kept["tape"]["ops"].pop(),
        lambda kept: kept["tape"]["ops"][0].__setitem__(0, "no.such_op"),
        lambda kept: kept["tape"]["outside"].__setitem__(0, "no.such.weight"),
        lambda kept: kept["like"].pop(),
        lambda kept: kept["like"][0][0].__setitem__(1, "float32"),
        lambda kept: kept.clear(),
    ],
)
def test_a_remembered_step_of_other_bits_is_written_down_anew(
    alter: Callable[[dict[str, Any]], object],
    llama: Path,
    wanted: list[torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened(llama, Remembered(tmp_path))
    monkeypatch.setattr(Altered, "alter", alter, raising=False)
    written = count(monkeypatch, StepTrial, "written_down")
    stages = opened(llama, Altered(tmp_path))
    assert (len(written), all(stage.decode_step for stage in stages)) == (4, True)
    assert same(wanted, split_logits(stages, single_prompt(160)))


def test_other_weights_take_the_step_of_their_kind(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_checkpoint(tmp_path / "m", "llama")
    model = reference_model(other)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.save_pretrained(other)
    opened(llama, Remembered(tmp_path / "kept"))
    written = count(monkeypatch, StepTrial, "written_down")
    stages = opened(other, Remembered(tmp_path / "kept"))
    found = split_logits(stages, single_prompt(160))
    assert written == []
    assert same(reference_logits(reference_model(other), single_prompt(160)), found)


def test_a_shape_is_tried_once_for_all_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = count(monkeypatch, turned_linear, "verdict_on")
    found = []
    for width, kept in ((64, "a"), (64, "a"), (128, "a"), (64, "b")):
        linear = nn.Linear(width, 64, dtype=torch.bfloat16)
        turned = turned_linear.turn_linears(linear, Remembered(tmp_path / kept))
        found.append((len(tried), turned.count + turned.left))
    linear = nn.Linear(64, 64, dtype=torch.bfloat16)
    kept_as = Remembered(tmp_path / "c")
    kept_as.put("turned-linear", [64, 64, True], [False, False])
    left = turned_linear.turn_linears(linear, kept_as).left
    supported = int(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    assert (found, left) == ([(n * supported, supported) for n in (1, 1, 2, 3)], supported)


def test_an_estimate_is_the_same_without_a_second_run(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = count(monkeypatch, dry_run, "_dry_run")
    found = []
    for context in (96, 96, 128):
        request = prepare_stage(llama, StageSlice(1, 4, LAYERS), LoadOptions())
        kept = Remembered(tmp_path)
        estimate = estimate_memory(request, max_context=context, prefill_chunk=8, remembered=kept)
        plain = estimate_memory(request, max_context=context, prefill_chunk=8)
        dtypes = {parameter.dtype for parameter in request.plan.model.parameters()}
        found.append((estimate == plain, dtypes, len(runs)))
    # one of each two estimates has nothing to remember
    assert found == [(True, {torch.bfloat16}, runs_so_far) for runs_so_far in (2, 3, 5)]


def test_answers_are_those_of_these_circumstances(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed() -> Iterator[list[Any]]:
        yield circumstances()
        torch.set_num_threads(2)
        yield circumstances()
        torch.set_num_threads(1)
        with monkeypatch.context() as patch:
            patch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
            yield circumstances()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "__version__", "0.0")
            yield circumstances()

    found = list(changed())
    assert (circumstances() == found[0], len({repr(each) for each in found})) == (True, 4)


def test_code_that_came_with_a_model_is_not_judged_by_its_name(llama: Path) -> None:
    model = reference_model(llama)
    known = model_circumstances(model)
    own = type("Own", (nn.Module,), {"__module__": "transformers_modules.some.modeling"})
    model.add_module("own", own())
    assert (known is not None, model_circumstances(model)) == (True, None)


def test_a_worker_starts_the_second_time_from_what_the_first_has_left(
    llama: Path, tmp_path: Path
) -> None:
    seen, left = [], []
    for _ in range(2):
        arguments = (f"--model-id={llama}", "--threads=1", f"--cache-dir={tmp_path}")
        with WorkerProcess(*arguments, "--shard-start=1", "--shard-end=4") as worker:
            ready = worker.ready()
            worker.stdin.close()
            assert worker.end() == 0
        seen.append({name: value for name, value in ready.items() if name != "pid"})
        files = (tmp_path / "remembered").iterdir()
        left.append({path.name: path.stat().st_mtime_ns for path in files})
    kinds = {name.rpartition("-")[0] for name in left[0]}
    assert (seen[1], left[1]) == (seen[0], left[0])
    assert kinds >= {"decode-step", "dry-run", "model-files"}
