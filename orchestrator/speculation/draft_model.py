"""Start a draft model beside the orchestrator, and see whether it speaks the model's language."""

from __future__ import annotations

import contextlib

from orchestrator.bundle.records import NoRecorder
from orchestrator.failures import OpRejected, StageFailure
from orchestrator.specs import StageSpec
from orchestrator.speculation.model_drafter import verifies
from orchestrator.stages import Stages
from orchestrator.timeouts import Timeouts
from worker.protocol.capabilities import Capability
from worker.protocol.exits import ExitCode
from worker.protocol.ops import Sampling

# Two tokenizers that agree on them are one: words, cases, digits, spaces, scripts, symbols, code.
PROBES = (
    "The quick brown fox jumps over the lazy dog, doesn't it? UNBELIEVABLE!",
    "def f(x: int) -> list[str]:\n    return [str(i ** 2) for i in range(1_000)]  # 3.14159\n",
    "  \t\n\n Überraschung: naïve café, Ελληνικά, русский, 日本語の文章, 한국어, العربية, 🙂👩‍👩‍👧",
    '<|im_start|>user\n{"key": [null, 1e-9, true]}</s><|endoftext|>\\frac{a}{b} != 0x7F',
)

# As few rows as there are in the smaller and the larger pack, and how many passes a worker needs
# to compare them, to write down its short way, and to compare that.
_PACK_ROWS = (2, 5)
_WARM_PASSES = 3


class DraftRefused(Exception):
    """A draft model that cannot guess for this model. One sentence."""

    exit_code = ExitCode.USAGE


async def start_draft(spec: StageSpec, timeouts: Timeouts) -> Stages:
    """Start the draft model; an `aclose` is owed.

    Raises:
        StageFailure: it cannot be started.
        DraftRefused: it cannot go back to an earlier position.
    """
    # Not recovered: without it the answer goes on as well. Nor recorded, as it is no stage.
    model = await Stages.start([spec], recorder=NoRecorder(), timeouts=timeouts)
    if Capability.CROP not in model.facts.shared_capabilities:
        kind = model.facts.model_type
        await model.aclose()
        raise DraftRefused(
            f"the draft model ({kind or 'of an unknown kind'}) cannot go back to before a wrong "
            "guess, as its state has no positions; give --draft-model-id a model with attention "
            "in all layers"
        )
    return model


async def warm_up(model: Stages) -> None:
    """Have it compare its kernels for packs of rows, as it does with the first of each size.

    That takes some dozen steps: beside the start of the stages, nobody need wait for them.
    """
    if not verifies(model):
        return
    rid = "warm"
    with contextlib.suppress(OpRejected, StageFailure, ConnectionError):  # Who asks next is told.
        await model.prefill(rid, [0], 1, Sampling())
        for rows in _PACK_ROWS:
            for _ in range(_WARM_PASSES):
                await model.verify(rid, [0] * rows, 1, Sampling())
    await model.release(rid)


async def check_language(model: Stages, draft: Stages, draft_name: str) -> None:
    """See to it that a token id is the same piece of text in both.

    The sizes of the vocabularies may differ: some are filled up with ids that no text has.

    Raises:
        DraftRefused: it is not.
        StageFailure, ConnectionError: see `Stages.tokenize`.
    """
    for index, probe in enumerate(PROBES):
        rid = f"probe-{index}"
        theirs, ours = await _tokens(model, rid, probe), await _tokens(draft, rid, probe)
        if theirs != ours:
            raise DraftRefused(
                f"--draft-model-id {draft_name} has another tokenizer (vocabulary of "
                f"{draft.facts.vocab_size}, the model's is {model.facts.vocab_size}): "
                f"{probe[:20]!r}… is {_words(ours)} there and {_words(theirs)} in the model; give "
                "a smaller model of the same family"
            )


async def _tokens(model: Stages, rid: str, text: str) -> tuple[int, ...] | None:
    try:
        return await model.tokenize(rid, text)
    except OpRejected:
        return None  # it has no tokenizer


def _words(tokens: tuple[int, ...] | None) -> str:
    return "no tokens at all" if tokens is None else f"{len(tokens)} tokens {list(tokens[:4])}…"
