"""The bundle of one run: where it goes, and what its manifest says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

from orchestrator.bundle.held import HeldRecorder
from orchestrator.bundle.location import default_folder, fresh_path, prune
from orchestrator.bundle.manifest import Manifest
from orchestrator.bundle.records import NoRecorder, Recorder, StageRecord
from orchestrator.bundle.writer import BundleWriter
from orchestrator.config import surroundings
from orchestrator.hosts import HostEntry
from orchestrator.placement import Placement
from orchestrator.specs import StageSpec


class DiaryOptions(Protocol):
    """What the options of a command that writes a bundle have; it keeps all their fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def bundle_dir(self) -> Path | None:
        """The folder that the user chose."""

    @property
    def no_bundle(self) -> bool:
        """Whether none is wanted."""

    @property
    def forward(self) -> Sequence[str] | None:
        """Variables whose values must not stand in it."""


class Diary:
    """Begins the bundle of a run once it is known what runs, and ends it.

    Args:
        options: the run's; --no-bundle means that nothing is written.
        command: the command line.

    Attributes:
        around: the surroundings that the run was started in.
    """

    def __init__(self, options: DiaryOptions, command: Sequence[str]) -> None:
        self.around = surroundings()
        self._begun_ns = time.time_ns()
        self._options = options
        self._command = tuple(command)
        self._writer: BundleWriter | None = None

    @property
    def path(self) -> Path | None:
        """Where the bundle is, if it can be written."""
        return self._writer.path if self._writer is not None and self._writer.is_open else None

    def open(
        self,
        entries: Sequence[HostEntry],
        specs: Sequence[StageSpec],
        placement: Placement | None = None,
    ) -> Recorder:
        """Begin it; where it cannot be written, the writer has said so and stays silent."""
        return self._open(entries, specs, placement, time.time_ns())

    def open_survey(
        self, entries: Sequence[HostEntry], specs: Sequence[StageSpec], held: HeldRecorder
    ) -> None:
        """Make it that of a survey that failed: it began with the command, and has what was told.

        Args:
            entries: the hosts.
            specs: the workers that were to ask them.
            held: what these told.
        """
        held.hand_over(self._open(entries, specs, None, self._begun_ns))

    def _open(
        self,
        entries: Sequence[HostEntry],
        specs: Sequence[StageSpec],
        placement: Placement | None,
        begun_ns: int,
    ) -> Recorder:
        options = self._options
        if options.no_bundle:
            return NoRecorder()
        folder = options.bundle_dir or default_folder(self.around.state_dir)
        manifest = Manifest(
            command=self._command,
            config={name: _plain(value) for name, value in asdict(options).items()},
            hosts=tuple(entry.text for entry in entries if entry.text),
            stages=tuple(_stage_record(spec) for spec in specs),
            plan=None if placement is None else placement.to_json(),
        ).stamped(begun_ns)
        path = fresh_path(folder, time.time_ns())
        secrets = self.around.masked(options.forward or ())
        self._writer = BundleWriter(path, manifest, secrets=secrets)
        return self._writer

    def close(self, exit_code: int, error: str | None) -> None:
        """Note how the run ended, and keep the newest few in the default folder.

        A folder that the user chose is the user's.
        """
        if self._writer is None:
            return
        self._writer.close(exit_code, error)
        if self._options.bundle_dir is None:
            prune(default_folder(self.around.state_dir), time.time_ns())


def _stage_record(spec: StageSpec) -> StageRecord:
    return StageRecord(
        stage=spec.stage,
        host=spec.host,
        transport=spec.transport,
        layer_range=f"{spec.layers[0]}:{spec.layers[1]}" if spec.layers else None,
        quantization=spec.options.quantization,
        device=spec.options.device,
        threads=spec.options.threads,
        command=spec.launch("NONCE").argv,
    )


def _plain(value: Any) -> Any:
    """Return an option's value as JSON can hold it."""
    return str(value) if isinstance(value, Path) else value
