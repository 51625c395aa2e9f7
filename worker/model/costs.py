"""Count what every layer and role of a model costs, from its config and headers alone."""

from __future__ import annotations

from collections.abc import Mapping

from worker.model import internals
from worker.model.architecture import check_quantization
from worker.model.cost_groups import end_groups, group_sizes, layer_groups
from worker.model.cuts import legal_cuts
from worker.model.dry_run import DryRun
from worker.model.errors import UnsupportedModel
from worker.model.kept_runs import remembered_dry_run
from worker.model.memory import run_by_formula
from worker.model.plan import StagePlan, plan_stages
from worker.model.quantize import choose
from worker.model.quantized_cost import CostQuestion, QuantizedCosting, WidestSlice
from worker.model.slicing import cache_entries
from worker.model.verdict import support_for
from worker.protocol.costs import ModelCosts, QuantizedCost
from worker.protocol.stage import Role, StageSlice


def model_costs(question: CostQuestion) -> ModelCosts:
    """Count weights, cache and temporaries by layer and by role; no weight is read.

    For every legal slice the costs of its layers and of its role together are the weights and
    the cache of `estimate_memory` to the byte, and its temporaries or more. Weights that several
    layers share count for the role. Some seconds at 671B shapes.

    Raises:
        UnsupportedModel: the model cannot be split, or not be planned.
        CheckpointError: a header is missing or broken.
    """
    architecture, index = question.architecture, question.index
    support = support_for(architecture)
    support.check()
    num_layers = architecture.num_layers
    cuts = legal_cuts(architecture.config, num_layers)
    slices = _widest_slices(num_layers, cuts)
    plans = plan_stages(
        architecture,
        index.names,
        list(dict.fromkeys(slices.values())),
        needs_tokens=support.mode.needs_tokens,
    )
    by_slice = {plan.sliced.stage: WidestSlice(plan, _run(plan, question)) for plan in plans}
    roles = {role: by_slice[stage] for role, stage in slices.items()}
    quantizations, unavailable = _quantized_costs(question, roles)
    # what a middle stage holds beside its layers is held by every stage
    middle = roles[Role.MIDDLE].plan if len(cuts) > 1 else None
    return ModelCosts(
        layer_kv_bytes=_layer_kv_bytes(roles[Role.WHOLE]),
        layer_groups=layer_groups(roles[Role.WHOLE].plan, middle),
        first_groups=end_groups(roles[Role.FIRST].plan),
        last_groups=end_groups(roles[Role.LAST].plan),
        groups=group_sizes(plans, index),
        quantizations=quantizations,
        unavailable=unavailable,
        cuts=None if len(cuts) == num_layers - 1 else tuple(cuts),
    )


def _widest_slices(num_layers: int, cuts: list[int]) -> dict[Role, StageSlice]:
    """Return the widest slice of each role; where there is none of a role, one that covers it."""
    whole = StageSlice(0, num_layers, num_layers)
    if not cuts:
        return dict.fromkeys(Role, whole)
    first = StageSlice(0, cuts[-1], num_layers)
    last = StageSlice(cuts[0], num_layers, num_layers)
    middle = StageSlice(cuts[0], cuts[-1], num_layers) if len(cuts) > 1 else first
    return {Role.FIRST: first, Role.MIDDLE: middle, Role.LAST: last, Role.WHOLE: whole}


def _run(plan: StagePlan, question: CostQuestion) -> DryRun:
    context, chunk = question.max_context, question.prefill_chunk
    run = remembered_dry_run(
        plan, max_context=context, prefill_chunk=chunk, remembered=question.remembered
    )
    return run_by_formula(plan, context, chunk) if run is None else run


def _layer_kv_bytes(whole: WidestSlice) -> tuple[int, ...]:
    """The cache by layers."""
    layers = list(whole.plan.model.get_submodule(whole.plan.sliced.parts.layers).children())
    entries = [cache_entries(layer) for layer in layers]
    left = dict(whole.run.entry_bytes)
    found = [0] * len(layers)
    for i, own in enumerate(entries):
        # modules that layers share may name an entry that a later one writes
        if i in own or not any(entries):
            found[i] = left.pop(i, 0)
    for i, own in enumerate(entries):
        found[i] += sum(left.pop(entry, 0) for entry in own)
    return tuple(found)


def _quantized_costs(
    question: CostQuestion, roles: Mapping[Role, WidestSlice]
) -> tuple[dict[str, QuantizedCost], dict[str, str]]:
    """The costs by quantization, and for those that cannot be had the reason."""
    plan = roles[Role.WHOLE].plan
    stacked = frozenset(internals.stacked_sources(plan.model, plan.tensors.parameters))
    found: dict[str, QuantizedCost] = {}
    unavailable: dict[str, str] = {}
    for quantization in question.quantizations:
        try:
            check_quantization(question.architecture.config, quantization)
            choice = choose(plan, quantization, question.device)
        except UnsupportedModel as error:
            unavailable[quantization] = str(error)
        else:
            found[quantization] = QuantizedCosting(question, roles, choice, stacked).cost()
    return found, unavailable
