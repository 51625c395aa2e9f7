"""Many requests on their way through the stages: who is sent next, and what goes together."""

from orchestrator.scheduler.scheduler import Scheduler

__all__ = ["Scheduler"]
