"""The stages of one model in order: started together, called in turn, ended together."""

from orchestrator.stages.stages import Stages

__all__ = ["Stages"]
