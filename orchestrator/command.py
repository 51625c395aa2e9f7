"""How a command that is no run begins and ends: one sentence for each error, one exit code."""

from __future__ import annotations

import asyncio
import json
import signal
import traceback
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

from orchestrator.bundle.mask import Masker
from orchestrator.config import surroundings
from orchestrator.interruption import Interrupted
from orchestrator.stderr import say
from orchestrator.text_output import stdout_fd, write_all
from orchestrator.trouble import trouble_of


def finish(work: Callable[[ExitStack], Coroutine[Any, Any, int]], *, as_json: bool) -> int:
    """Run a command to its end and return its exit code.

    Args:
        work: what it does; returns the exit code where nothing went wrong. It is given what it
            may hold until it has ended, as an allocation of Slurm.
        as_json: whether stdout gets one JSON object also after an error.
    """
    try:
        with ExitStack() as hold:
            return asyncio.run(work(hold))
    except KeyboardInterrupt:
        trouble = trouble_of(Interrupted(signal.SIGINT))
    except Exception as error:  # noqa: BLE001 - every error ends here, as one sentence and exit code
        trouble = trouble_of(error)
        if not trouble.expected:
            say(traceback.format_exc())
    trouble = trouble.masked(Masker(surroundings().masked()))
    if as_json and trouble.kind != "output_closed":
        _write(json.dumps({"error": trouble.fields()}))
    if trouble.sentence:
        say(trouble.sentence if trouble.kind == "interrupted" else f"error: {trouble.sentence}")
    return trouble.exit_code


def put(text: str) -> None:
    """Write lines to stdout.

    Raises:
        OutputClosed, OutputFailed: they cannot be written.
    """
    error = _write(text)
    if error is not None:
        raise error


def _write(text: str) -> Exception | None:
    fd = stdout_fd()
    return None if fd is None else write_all(fd, (text + "\n").encode("utf-8", "replace"))
