"""The bundle of one run: where it goes, and what its manifest says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.bundle.location import default_folder, fresh_path, prune
from orchestrator.bundle.manifest import Manifest
from orchestrator.bundle.records import StageRecord
from orchestrator.bundle.writer import BundleWriter
from orchestrator.config import Surroundings
from orchestrator.hosts import HostEntry
from orchestrator.plan import Plan
from orchestrator.run_options import RunOptions
from orchestrator.specs import StageSpec


def open_bundle(
    options: RunOptions,
    entries: Sequence[HostEntry],
    plan: Plan,
    around: Surroundings,
    command: Sequence[str],
) -> BundleWriter:
    """Begin the bundle; where it cannot be written, the writer has said so and stays silent."""
    folder = options.bundle_dir or default_folder(around.state_dir)
    manifest = Manifest(
        command=tuple(command),
        config={name: _plain(value) for name, value in asdict(options).items()},
        hosts=tuple(entry.text for entry in entries if entry.text),
        stages=tuple(_stage_record(spec) for spec in plan.specs),
    )
    return BundleWriter(fresh_path(folder, time.time_ns()), manifest, secrets=around.secrets)


def clear_old_bundles(options: RunOptions, around: Surroundings) -> None:
    """Keep the newest few in the default folder; a folder that the user chose is the user's."""
    if options.bundle_dir is None:
        prune(default_folder(around.state_dir), time.time_ns())


def _stage_record(spec: StageSpec) -> StageRecord:
    return StageRecord(
        stage=spec.stage,
        host=spec.host,
        transport=spec.transport,
        layer_range=f"{spec.layers[0]}:{spec.layers[1]}" if spec.layers else None,
        quantization=spec.options.quantization,
        device=spec.options.device,
        command=spec.launch("NONCE").argv,
    )


def _plain(value: Any) -> Any:
    """Return an option's value as JSON can hold it."""
    return str(value) if isinstance(value, Path) else value
