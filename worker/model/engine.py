"""Run a loaded stage as fast as its bits allow, or with stock kernels alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from worker.model.decode_step import learn_decode_step
from worker.model.graph_step import learn_graph_step
from worker.model.graphs import CudaGraphs, Graphs
from worker.model.loaded import LoadedStage
from worker.model.run import StageRunner
from worker.model.short_step import ShortStep
from worker.model.tape import CannotReplay
from worker.model.turned_linear import turn_linears
from worker.model.wide_products import WideProducts
from worker.remembered import NOTHING, Remembered

# In layers of more, the model's Python takes less than a hundredth of a step.
_MOST_LAYER_BYTES = 256 << 20


def engaged(loaded: LoadedStage, remembered: Remembered = NOTHING) -> StageRunner:
    """Return what runs `loaded`, with the engine its options name; some decode steps of time.

    The stage that the runner has tells in its notes and numerics what the engine does. What has to
    be tried for that may be `remembered`.
    """
    if loaded.options.engine == "stock":
        return StageRunner(loaded)
    if loaded.options.engine == "graphs":
        runner = StageRunner(loaded)
        return graphed(runner, lambda: CudaGraphs(runner.device))
    # what is compiled for it is counted for weights of bfloat16
    wide = WideProducts() if loaded.options.quantization == "bfloat16" else None
    turned = turn_linears(loaded.model, remembered, wide)
    notes = (*loaded.notes, *turned.notes)
    numerics = {**loaded.numerics, **turned.numerics}
    runner = StageRunner(replace(loaded, notes=notes, numerics=numerics))
    if loaded.options.device != "cpu":
        return runner
    if loaded.weight_bytes > _MOST_LAYER_BYTES * loaded.stage.num_own_layers:
        return runner
    return _with_step(runner, lambda runner: learn_decode_step(runner, remembered))


def graphed(runner: StageRunner, graphs: Callable[[], Graphs]) -> StageRunner:
    """Have `runner` replay its decode steps, where that gives the same bits; a note if not."""
    return _with_step(runner, lambda runner: learn_graph_step(runner, graphs()))


def _with_step(runner: StageRunner, learn: Callable[[StageRunner], ShortStep]) -> StageRunner:
    try:
        runner.decode_step = learn(runner)
    except CannotReplay as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a model does here, it can do without
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    else:
        return runner
    note = f"Decode steps go through the model's own code, which takes longer: {reason}."
    runner.loaded = replace(runner.loaded, notes=(*runner.loaded.notes, note))
    return runner
