"""The seeds of the answers to one prompt."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.request import GenerationRequest


def with_seed(request: GenerationRequest, number: int) -> GenerationRequest:
    """Return the request of answer `number`: it draws with the seed plus its number.

    So each answer of several can be had again alone, under the seed that it had.
    """
    sampling = request.sampling
    return replace(request, sampling=replace(sampling, seed=sampling.seed + number))
