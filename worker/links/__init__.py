"""Links from stage to stage, beside the pipe to the orchestrator: hidden states go straight on."""

from worker.links.links import Links

__all__ = ["Links"]
