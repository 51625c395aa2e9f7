"""Remember which packs give each row the bits it gets alone, for stages of the same kind."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from worker.model.kept_tapes import stage_kind
from worker.model.pack import PackKind, Verdict
from worker.model.run import StageRunner
from worker.remembered import NOTHING, Remembered

_KIND = "pack"


class KeptVerdicts:
    """The verdicts of one stage, by all that decides its ops; of its weights only their shapes do.

    Args:
        runner: of the stage.
        remembered: where they are kept.
    """

    def __init__(self, runner: StageRunner, remembered: Remembered) -> None:
        self._remembered = remembered
        self._names = {module: name for name, module in runner.loaded.model.named_modules()}
        self._modules = {name: module for module, name in self._names.items()}
        self._stage: list[Any] | None = None
        if remembered is not NOTHING:
            with suppress(OSError):
                self._stage = stage_kind(runner)

    def get(self, kind: PackKind) -> Verdict | None:
        """Return what was found out about a kind of pack; None if that is not known."""
        if self._stage is None:
            return None
        kept = self._remembered.get(_KIND, self._depends(kind))
        with suppress(Exception):  # of another form: as good as absent
            is_exact, uneven, is_watched = kept
            if type(is_exact) is bool and type(is_watched) is bool:
                return Verdict(is_exact, tuple(self._modules[name] for name in uneven), is_watched)
        return None

    def put(self, kind: PackKind, verdict: Verdict) -> None:
        """Keep what was found out."""
        if self._stage is not None:
            uneven = [self._names[module] for module in verdict.uneven]
            answer = [verdict.is_exact, uneven, verdict.is_watched]
            self._remembered.put(_KIND, self._depends(kind), answer)

    def _depends(self, kind: PackKind) -> list[Any]:
        return [self._stage, kind.size, kind.is_mixed, kind.want]
