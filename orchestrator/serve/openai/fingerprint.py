"""What answers depend on besides the request, as one short word."""

from __future__ import annotations

import hashlib
import json

from orchestrator.pipeline_facts import PipelineFacts


def fingerprint_of(facts: PipelineFacts) -> str:
    """Return a word that stays the same as long as the model, its numbers and the engine do."""
    stages = [
        [
            ready.version,
            ready.model_type,
            ready.commit,
            ready.hidden_dtype,
            ready.quantization,
            ready.numerics,
        ]
        for ready in facts.ready
    ]
    # How many stages there are changes nothing, so equal ones count once.
    told = sorted({json.dumps(stage, sort_keys=True) for stage in stages})
    return "fp_" + hashlib.sha256("\n".join(told).encode("utf-8")).hexdigest()[:12]
