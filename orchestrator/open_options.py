"""The options of `Pipeline.open`, for the reader and the type checker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from orchestrator.pipeline_options import ReuseKind
from orchestrator.speculation.drafter import SpeculationKind


class OpenOptions(TypedDict, total=False):
    """The flags of `orchestrator run` and their defaults, by the names that they have there.

    Attributes:
        stub: workers without a model, for trying out.
        revision: branch, tag or commit on the hub.
        quantization: bfloat16 (default), int8, nf4, int8-weight or int4-weight.
        engine: fast (default), stock or graphs.
        device: auto (default), cpu, cuda, cuda:N or mps.
        threads: compute threads of each worker; cores / local stages.
        max_context: most tokens of prompt and answer together; what the model allows.
        prefill_chunk: tokens of a prompt per step, 256.
        trust_remote_code: run code that comes with the model.
        even_split: split the layers evenly, without asking the hosts what they can hold.
        slurm: options of salloc, "" for the allocation that this program runs in; the event loop
            stands still until it is granted.
        slurm_wait_s: that an allocation may wait in Slurm's queue.
        accept_new: accept SSH host keys that are not known yet.
        ssh_command: ssh client with options of your own.
        start_timeout_s: that a worker may take to connect, and then for its work, downloads aside.
        forward: variables of the environment here to give to workers elsewhere.
        cache_dir: folder on each host that keeps fetched weights.
        fetch_connections: of each stage to the hub, 4.
        whole_files: fetch whole weight files.
        restarts: times in a row that a lost stage is started again, 3; 0 ends the pipeline at the
            first failure.
        links: star (default), chain or auto; see docs/scheduling.md.
        wire_encoding: auto (default), bf16, bf16-planes-zstd or int8-row-top8; see docs/wire.md.
        speculate: auto (default), off, ngram or draft; see docs/speculation.md.
        draft_model_id: a small model of the same family, to guess with; it runs here.
        draft_quantization: of the draft model.
        draft_device: of the draft model.
        prefix_reuse: turns (default), chunks or off; see docs/prefixes.md.
        bundle_dir: folder to make the diagnostic bundle in.
        no_bundle: write no diagnostic bundle.
    """

    stub: bool
    revision: str | None
    quantization: str | None
    engine: str | None
    device: str | None
    threads: int | None
    max_context: int | None
    prefill_chunk: int
    trust_remote_code: bool
    even_split: bool
    slurm: str | None
    slurm_wait_s: float
    accept_new: bool
    ssh_command: str
    start_timeout_s: float | None
    forward: Sequence[str] | None
    cache_dir: str | None
    fetch_connections: int | None
    whole_files: bool
    restarts: int
    links: str
    wire_encoding: str
    speculate: SpeculationKind
    draft_model_id: str | None
    draft_quantization: str | None
    draft_device: str | None
    prefix_reuse: ReuseKind
    bundle_dir: Path | None
    no_bundle: bool
