"""Which groups of tensors the layers and the ends of a model need, and how large those are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from worker.model.plan import StagePlan
from worker.model.weight_size import layer_index
from worker.protocol.costs import GroupSize
from worker.weights.group import group_of
from worker.weights.index import CheckpointIndex


def layer_groups(whole: StagePlan, middle: StagePlan | None) -> tuple[tuple[str, ...], ...]:
    """Return the groups that each layer of the whole model needs.

    What a middle stage holds beside its layers (a final norm, learned positions) is held by all
    stages, and counts for each layer. None where no stage can be a middle one.
    """
    needed = _by_layer(whole)
    everywhere = set() if middle is None else _by_layer(middle)[None]
    for names in _tied_over_layers(whole):
        stored = {
            group_of(name) for name, target in whole.tensors.parameters.items() if target in names
        }
        for layer in {layer_index(whole, name) for name in names}:
            needed[layer] |= stored
    num_layers = whole.sliced.stage.num_layers
    return tuple(tuple(sorted(needed[i] | everywhere)) for i in range(num_layers))


def end_groups(plan: StagePlan) -> tuple[str, ...]:
    """Return the groups that a first or last stage needs beside those of its layers."""
    return tuple(sorted(_by_layer(plan)[None]))


def group_sizes(plans: Iterable[StagePlan], index: CheckpointIndex) -> dict[str, GroupSize]:
    """Return the groups that any of the plans needs, of each the tensors that are needed.

    Raises:
        CheckpointError: a header is missing or broken.
    """
    sizes: dict[str, int] = defaultdict(int)
    files: dict[str, set[str]] = defaultdict(set)
    for name in {name for plan in plans for name in plan.tensors.names}:
        sizes[group_of(name)] += index.entry(name).size_bytes
        files[group_of(name)].add(index.file_of(name))
    return {
        group: GroupSize(size_bytes=sizes[group], files=tuple(sorted(files[group])))
        for group in sorted(sizes)
    }


def shared_by_layers(whole: StagePlan) -> frozenset[str]:
    """Name the parameters that several layers share, under all their names."""
    return frozenset().union(*_tied_over_layers(whole))


def _tied_over_layers(plan: StagePlan) -> list[set[str]]:
    groups: dict[str, set[str]] = {}
    for target, source in plan.sliced.tied.items():
        groups.setdefault(source, {source}).add(target)
    found = []
    for names in groups.values():
        if len({layer_index(plan, name) for name in names}) > 1:
            found.append(names)
    return found


def _by_layer(plan: StagePlan) -> defaultdict[int | None, set[str]]:
    """The groups of what the one selection takes, by the layer of the parameters they fill."""
    found: defaultdict[int | None, set[str]] = defaultdict(set)
    aliases = ((name, target) for target, name in plan.tensors.aliases.items())
    for name, target in (*plan.tensors.parameters.items(), *aliases):
        found[layer_index(plan, target)].add(group_of(name))
    return found
