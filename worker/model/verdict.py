"""Say whether and how a model can be split: from the shipped table, or by trying."""

from __future__ import annotations

import json
from importlib import resources

from worker.model.architecture import Architecture
from worker.model.probe import probe
from worker.model.support import Mode, Support


def verified_types() -> dict[str, Support]:
    """Return the shipped table: model types that `tools/arch_table` has tried."""
    raw = resources.files("worker.model").joinpath("verified.json").read_text("utf-8")
    return {
        model_type: Support(model_type, Mode(row["mode"]), row.get("reason"))
        for model_type, row in json.loads(raw).items()
    }


def support_for(architecture: Architecture) -> Support:
    """Look the model type up, that of its text decoder too; probe a type nobody has tried.

    A probe builds a shrunken random model and compares split with unsplit: seconds.
    """
    table = verified_types()
    for config in (architecture.config, architecture.text_config):
        found = table.get(config.model_type)
        if found is not None and not architecture.is_remote:
            return found
    return probe(architecture)
