"""Whether the requests of a pipeline are guessed ahead, and by whom."""

from __future__ import annotations

from orchestrator.prefixes.lease import Lease
from orchestrator.request import GenerationRequest
from orchestrator.speculation.drafter import Drafter
from orchestrator.speculation.model_drafter import ModelDrafter
from orchestrator.speculation.ngram import NgramDrafter
from orchestrator.speculation.pass_costs import PassCosts
from orchestrator.speculation.speculated import Bounds, SpeculatedTokens
from orchestrator.stages import Stages
from worker.protocol.capabilities import Capability

NEEDED = (Capability.AS_STEPS, Capability.SAMPLE_STEPS, Capability.CROP)


class Speculator:
    """Opens the requests of one pipeline; what they learn of its costs is shared.

    Args:
        pipeline: the model; see `lacking`.
        draft: a draft model; without one the text itself is looked up.
    """

    def __init__(self, pipeline: Stages, draft: Stages | None = None) -> None:
        self._pipeline = pipeline
        self._draft = draft
        self._costs = PassCosts(pipeline.facts.max_rows, lambda: pipeline.links_s)

    def open(self, request: GenerationRequest, lease: Lease, bounds: Bounds) -> SpeculatedTokens:
        """Return the source of a request's tokens.

        Args:
            request: the request.
            lease: its KV caches, and how its prompt is computed.
            bounds: where its answer ends.
        """
        drafter: Drafter = NgramDrafter()
        if self._draft is not None:
            drafter = ModelDrafter(self._draft, request, self._pipeline.facts.vocab_size)
        return SpeculatedTokens(self._pipeline, request, lease, bounds, drafter, self._costs)

    def kill(self) -> None:
        """Send SIGKILL to the draft model; whoever started it ends it."""
        if self._draft is not None:
            self._draft.kill()


def lacking(pipeline: Stages) -> str | None:
    """Return a note on what keeps a pipeline from verifying guesses, if anything does."""
    for host, ready in zip(pipeline.hosts, pipeline.ready, strict=True):
        missing = [name for name in NEEDED if name not in ready.capabilities]
        if missing:
            return (
                f"nothing is guessed ahead: stage {ready.stage} on {host} lacks "
                f"{', '.join(missing)}"
            )
    return None
