"""Whether a stage that was started again gives the same bits as the one that was lost."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.failures import NotReady, Scene
from orchestrator.specs import StageSpec
from worker.protocol.ready import Ready

_SAME = (
    "layer_range",
    "total_blocks",
    "hidden_dim",
    "hidden_dtype",
    "vocab_size",
    "model_type",
    "commit",
    "quantization",
    "needs_tokens",
)


def pinned(spec: StageSpec, lost: Ready) -> StageSpec:
    """Return the spec with what its first start left open and the lost stage has settled.

    A revision may name another commit by now, and the number of threads decides bits.
    """
    options = spec.options
    if lost.commit is not None and options.model_id is not None:
        repo_id = options.model_id.partition("@")[0]
        options = replace(options, model_id=repo_id, revision=lost.commit)
    threads = (lost.numerics or {}).get("threads", "")
    if options.threads is None and threads.isdecimal():
        options = replace(options, threads=int(threads))
    return replace(spec, options=options)


def check_likeness(spec: StageSpec, lost: Ready, new: Ready, *, bits_matter: bool) -> None:
    """See that the new stage can go on with what the lost one began.

    Args:
        spec: of the new stage.
        lost: ready line of the lost stage.
        new: ready line of the new one.
        bits_matter: whether requests live that have computed with the lost stage; without any,
            other kernels are no harm, as each answer is made by one kind alone.

    Raises:
        NotReady: it cannot; the sentence says in what it differs.
    """
    for name in _SAME:
        was, now = getattr(lost, name), getattr(new, name)
        if was != now and None not in (was, now):
            raise _unlike(spec, f"has {name} {_text(now)}, the lost stage had {_text(was)}")
    missing = set(lost.capabilities) - set(new.capabilities)
    if missing:
        raise _unlike(spec, f"cannot do {', '.join(sorted(missing))}, which the lost stage could")
    missing = set(lost.encodings) - set(new.encodings)
    if missing:
        raise _unlike(
            spec,
            f"does not know the wire encoding {', '.join(sorted(missing))}, which the lost stage "
            "knew",
        )
    short = (new.max_context or 0) < (lost.max_context or 0) and new.max_context is not None
    if short:
        raise _unlike(spec, f"holds {new.max_context} positions, not {lost.max_context}")
    differing = _numerics_apart(lost, new) if bits_matter else []
    if differing:
        raise _unlike(
            spec,
            f"computes with other kernels ({'; '.join(differing)}), so that answers under way "
            "would not go on as they began",
        )


def _numerics_apart(lost: Ready, new: Ready) -> list[str]:
    was = {"device": lost.device.partition(":")[0], **(lost.numerics or {})}
    now = {"device": new.device.partition(":")[0], **(new.numerics or {})}
    return [
        f"{name} {now.get(name, 'unknown')} in place of {was.get(name, 'unknown')}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    ]


def _text(value: object) -> str:
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _unlike(spec: StageSpec, cause: str) -> NotReady:
    scene = Scene(stage=spec.stage, host=spec.host, phase="loading", title=spec.title)
    advice = "give that host the same model, options and versions"
    return NotReady(scene, f"cannot take over: it {cause}; {advice}", may_pass=False)
