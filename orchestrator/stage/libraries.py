"""The libraries that a worker's code was made for; its host has its own."""

from __future__ import annotations

from worker.protocol.events import Starting

# Of each the minor version that was tested; other ones give other bits, or do not run the model.
LIBRARIES = {"torch": "2.13", "transformers": "5.24"}


def other_library(hello: Starting) -> str | None:
    """Return what a worker has that its code was not made for, as a verb phrase, or None.

    A library whose version is unknown is none that is known to be wrong: the worker itself says
    so where it lacks one.
    """
    if hello.stub:
        return None
    found = {"torch": hello.torch, "transformers": hello.transformers}
    wrong = [
        f"{name} {version} (needs {LIBRARIES[name]})"
        for name, version in found.items()
        if version is not None and not f"{version}.".startswith(f"{LIBRARIES[name]}.")
    ]
    if not wrong:
        return None
    return (
        f"has {' and '.join(wrong)} for its python {hello.python}; run 'orchestrator setup' for "
        "that host (its line must not say python=), or give python= of an environment that has them"
    )
