"""What the page is told of the server: the stages, how busy they are, who waits."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from orchestrator import __version__
from orchestrator.request import DEFAULT_NEW_TOKENS
from orchestrator.serve.service import Service


def status_of(service: Service) -> dict[str, Any]:
    """Return the state of the server as JSON has it.

    `max_new_tokens` bounds an answer that asks for no bound; null: it may fill the context.
    `layers` is half-open; `busy_share` is of the last seconds, 0 to 1; `generated_tokens`,
    `prompt_tokens` and `cached_tokens` count from the start of the server.
    """
    pipeline, desk, registry = service.pipeline, service.desk, service.meters.registry
    failure = pipeline.stages.failure
    return {
        "model": service.model_name,
        "version": __version__,
        "num_layers": pipeline.facts.num_layers,
        "max_context": pipeline.facts.max_context,
        "max_new_tokens": _most_new_tokens(service),
        "stages": _stages_of(service),
        "running": desk.running,
        "queued": desk.queued,
        "places": desk.places,
        "is_draining": desk.is_draining,
        "generated_tokens": _count(registry, "stageline_generated_tokens_total"),
        "prompt_tokens": _count(registry, "stageline_prompt_tokens_total"),
        "cached_tokens": _count(registry, "stageline_cached_prompt_tokens_total"),
        "failure": None if failure is None else str(failure),
    }


def _most_new_tokens(service: Service) -> int | None:
    limit = service.limits.max_new_tokens
    return limit or (None if service.pipeline.facts.max_context else DEFAULT_NEW_TOKENS)


def _stages_of(service: Service) -> list[dict[str, Any]]:
    stages, registry = service.pipeline.stages, service.meters.registry
    rows = zip(stages.hosts, stages.ready, stages.states, strict=True)
    return [
        {
            "stage": index,
            "host": host,
            "device": ready.device,
            "quantization": ready.quantization,
            "layers": list(ready.layer_range),
            "state": state,
            "busy_share": round(
                registry.get_sample_value("stageline_stage_busy_share", {"stage": str(index)})
                or 0.0,
                3,
            ),
        }
        for index, (host, ready, state) in enumerate(rows)
    ]


def _count(registry: CollectorRegistry, name: str) -> int:
    return int(registry.get_sample_value(name) or 0)
