"""Where a model may be cut: layers that share one KV cache must stay on one stage."""

from __future__ import annotations

from transformers import PretrainedConfig

from worker.model.errors import UnsupportedModel
from worker.protocol.stage import StageSlice


def legal_cuts(config: PretrainedConfig, num_layers: int) -> list[int]:
    """List the layer indices a stage may start at, 0 not included.

    A layer that reuses the keys and values of an earlier layer must be on its stage. The
    config says which do (`kv_source_layers`, `kv_sharing_modes`, `num_kv_shared_layers`).
    """
    text = config.get_text_config(decoder=True)
    sources: list[int] | None = getattr(text, "kv_source_layers", None)
    if sources:
        return [c for c in range(1, num_layers) if all(s >= c for s in sources[c:])]
    modes: list[str | None] = getattr(text, "kv_sharing_modes", None) or []
    shared = getattr(text, "num_kv_shared_layers", 0) or 0
    if shared and not modes:
        # who stores for them is not said, so nothing may be cut
        modes = [*["store"] * (num_layers - shared), *["reuse"] * shared]
    stores = [i for i, mode in enumerate(modes) if mode == "store"]
    reuses = [i for i, mode in enumerate(modes) if mode is not None and mode != "store"]
    if not reuses:
        return list(range(1, num_layers))
    first_store = min(stores, default=0)
    return [c for c in range(1, num_layers) if c <= first_store or c > reuses[-1]]


def check_cuts(config: PretrainedConfig, stage: StageSlice) -> None:
    """Refuse a slice that parts layers which share one KV cache.

    Raises:
        UnsupportedModel: with the legal cut positions.
    """
    legal = {0, *legal_cuts(config, stage.num_layers), stage.num_layers}
    for cut in (stage.shard_start, stage.shard_end):
        if cut not in legal:
            choices = ", ".join(str(c) for c in sorted(legal - {0, stage.num_layers})) or "none"
            raise UnsupportedModel(
                f"layers {stage} cannot be cut at {cut}, because later layers reuse the keys and "
                f"values of earlier ones; legal cut positions are: {choices}"
            )
