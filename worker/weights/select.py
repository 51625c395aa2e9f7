"""Decide which checkpoint tensors a slice needs: the one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from worker.weights.header import TensorEntry
from worker.weights.index import CheckpointIndex


@dataclass(frozen=True)
class StageTensors:
    """The tensors of one slice.

    `parameters` maps each needed checkpoint name to the parameter it (first) fills. `aliases`
    maps a parameter to the checkpoint name it is read from although that name belongs to
    another parameter: tied weights whose owner is on another stage. `missing` are parameters
    of the slice that nothing in the checkpoint fills.
    """

    parameters: dict[str, str]
    aliases: dict[str, str]
    missing: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Every checkpoint name to be read, each once, in a stable order."""
        return sorted({*self.parameters, *self.aliases.values()})

    def entries(self, index: CheckpointIndex) -> list[TensorEntry]:
        """Return where the tensors lie, by file and offset.

        Raises:
            CheckpointError: a needed file is missing or broken.
        """
        found = [index.entry(name) for name in self.names]
        return sorted(found, key=lambda entry: (entry.file, entry.offset_bytes))

    def files(self, index: CheckpointIndex) -> list[str]:
        """Return the files that hold the tensors; needs the index alone."""
        return sorted({index.file_of(name) for name in self.names})

    def total_bytes(self, index: CheckpointIndex) -> int:
        """Return how many bytes are to be read."""
        return sum(entry.size_bytes for entry in self.entries(index))


def select_tensors(
    targets: Mapping[str, str], own: Iterable[str], tied: Mapping[str, str]
) -> StageTensors:
    """Select what a slice needs from a checkpoint.

    `targets` maps every checkpoint name that the whole model uses to its parameter, `own` are
    the slice's parameters, `tied` maps a parameter of the whole model to the one it shares.
    A tied parameter is read under its own name where the checkpoint has it, else under the
    name of a parameter it shares its weight with, whichever stage that one is on.
    """
    own_names = set(own)
    parameters = {name: target for name, target in targets.items() if target in own_names}
    filled = set(parameters.values())
    by_target: dict[str, list[str]] = {}
    for name, target in targets.items():
        by_target.setdefault(target, []).append(name)
    aliases: dict[str, str] = {}
    for group in _groups(tied):
        here = [name for name in group if name in own_names]
        if not here or any(name in filled for name in here):
            # with one of them read, the loader ties the others that are here to it
            continue
        stored = [by_target[name][0] for name in group if len(by_target.get(name, ())) == 1]
        if stored:
            aliases[here[0]] = stored[0]
    covered = filled | set(aliases)
    for group in _groups(tied):
        if covered & set(group):
            covered |= set(group)
    return StageTensors(parameters, aliases, tuple(sorted(own_names - covered)))


def _groups(tied: Mapping[str, str]) -> list[list[str]]:
    """Parameters that share one weight, the owner first."""
    groups: dict[str, list[str]] = {}
    for target, source in tied.items():
        groups.setdefault(source, [source]).append(target)
    return list(groups.values())
