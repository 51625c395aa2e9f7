"""Run a loaded stage as fast as its bits allow, or with stock kernels alone."""

from __future__ import annotations

from dataclasses import replace

from worker.model.decode_step import learn_decode_step
from worker.model.loaded import LoadedStage
from worker.model.run import StageRunner
from worker.model.tape import CannotReplay
from worker.model.turned_linear import turn_linears

# In layers of more, the model's Python takes less than a hundredth of a step.
_MOST_LAYER_BYTES = 256 << 20


def engaged(loaded: LoadedStage) -> StageRunner:
    """Return what runs `loaded`, with the engine its options name; some decode steps of time.

    The stage that the runner has tells in its notes and numerics what the engine does.
    """
    if loaded.options.engine == "stock":
        return StageRunner(loaded)
    turned = turn_linears(loaded.model)
    notes = (*loaded.notes, *turned.notes)
    numerics = {**loaded.numerics, **turned.numerics}
    loaded = replace(loaded, notes=notes, numerics=numerics)
    runner = StageRunner(loaded)
    if loaded.options.device != "cpu":
        return runner
    if loaded.weight_bytes > _MOST_LAYER_BYTES * loaded.stage.num_own_layers:
        return runner
    try:
        runner.decode_step = learn_decode_step(runner)
    except CannotReplay as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a model does here, it can do without
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    else:
        return runner
    note = f"Decode steps go through the model's own code, which takes longer: {reason}."
    runner.loaded = replace(loaded, notes=(*notes, note))
    return runner
