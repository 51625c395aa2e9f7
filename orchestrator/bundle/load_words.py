"""What a worker's sentence about a load that failed comes down to."""

from __future__ import annotations

import re

from orchestrator.bundle.cause import Cause

# Of the worker's own sentences, the surest first; tests/chaos makes each of them happen.
_CAUSES: tuple[tuple[str, Cause], ...] = (
    (r"ModuleNotFoundError|No module named|ImportError", Cause.PACKAGE_MISSING),
    (r"disk is full|No space left|bytes are free; make room|make room \(", Cause.DISK_FULL),
    (
        r"is gated on the hub|\(HTTP 40[13]\)|set HF_TOKEN to a token that may read",
        Cause.HUB_ACCESS_REFUSED,
    ),
    (
        (
            r"there is no folder (?!.*taken for a hub id)|has no revision|has no file|"
            r"neither an existing folder|has no config\.json|holds no config\.json|"
            r"is a file; give the folder"
        ),
        Cause.MODEL_NOT_FOUND,
    ),
    (
        (
            r"the hub cannot be reached|the connection to .* failed|sent nothing for|"
            r"answers HTTP|hub failed to give|the hub asks to wait|HF_HUB_OFFLINE"
        ),
        Cause.HUB_UNREACHABLE,
    ),
    (
        r"Git LFS pointer|is truncated|trailing bytes|is empty|damaged|overlap|header",
        Cause.WEIGHTS_DAMAGED,
    ),
    (
        r"is unknown to the installed transformers|not supported|unsupported|holds no SafeTensors",
        Cause.MODEL_UNSUPPORTED,
    ),
    (r"^no memory|no memory was left|MemoryError", Cause.MEMORY_EXHAUSTED),
)
# "The hub has no model X, or it is private … set HF_TOKEN" is first of all a model that is not
# there; that of a private one reads the same on purpose of the hub's.
_NOT_THERE = re.compile(r"the hub has no model")


def load_cause(error: str, error_type: str = "") -> Cause:
    """Return the cause behind a sentence of the worker; `LOAD_ERROR` where it is none known."""
    if _NOT_THERE.search(error):
        return Cause.MODEL_NOT_FOUND
    text = f"{error} {error_type}"
    return next((cause for pattern, cause in _CAUSES if re.search(pattern, text)), Cause.LOAD_ERROR)
