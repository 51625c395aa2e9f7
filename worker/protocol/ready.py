"""The ready line: the one line that says the stage serves, and with what."""

from __future__ import annotations

from dataclasses import dataclass

from worker.protocol.schema import (
    FLAG,
    NON_NEGATIVE,
    OBJECT,
    POSITIVE,
    TEXT,
    TEXTS,
    TOKENS,
    one_of,
    rule,
)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What the stage is and can; `{"status": "ready", …}` on the wire."""

    pid: int = rule(NON_NEGATIVE, "process id on its host")
    stage: int | None = rule(
        NON_NEGATIVE, "stage index; absent when started with --shard-start/--shard-end", None
    )
    num_stages: int | None = rule(POSITIVE, "stages in the pipeline, with `stage`", None)
    protocol_version: str = rule(TEXT, "`major.minor`")
    version: str = rule(TEXT, "product version")
    layer_range: tuple[int, ...] = rule(TOKENS, "[shard_start, shard_end], half-open")
    total_blocks: int = rule(POSITIVE, "layers of the whole model")
    hidden_dim: int = rule(POSITIVE, "width of one row on the wire")
    hidden_dtype: str = rule(one_of("bfloat16", "float32"), "element type on the wire", "bfloat16")
    vocab_size: int = rule(POSITIVE, "token ids are below this")
    eos_token_ids: tuple[int, ...] = rule(TOKENS, "union of every source of end tokens", ())
    max_context: int | None = rule(POSITIVE, "most positions a request may use", None)
    needs_tokens: bool = rule(
        FLAG, "whether this model's later stages need the token ids too", False
    )
    model_type: str | None = rule(TEXT, "the architecture", None)
    model_id: str | None = rule(TEXT, "folder or hub id", None)
    commit: str | None = rule(TEXT, "the hub's commit that the weights are of", None)
    quantization: str = rule(
        TEXT, "bfloat16, int8, nf4, int8-weight, int4-weight or stub", "bfloat16"
    )
    device: str = rule(TEXT, "cpu, cuda:0, mps", "cpu")
    capabilities: tuple[str, ...] = rule(TEXTS, "optional parts of the protocol it speaks", ())
    max_rows: int = rule(
        POSITIVE,
        "rows that one pass over the weights serves, over all requests of a `together` or in one "
        "op `as_steps`; more are worked on in several passes, so that they gain nothing",
        1,
    )
    encodings: tuple[str, ...] = rule(
        TEXTS, "how hidden states may be encoded, both ways; `bf16` alone where absent", ("bf16",)
    )
    numerics: dict[str, str] | None = rule(
        OBJECT, "what decides bits: kernels, threads, expert and attention implementation", None
    )
