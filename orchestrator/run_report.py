"""The end of a run: the JSON object on stdout, the summary or the error on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys

from orchestrator.answer import Answer
from orchestrator.run_options import RunOptions
from orchestrator.stderr import say
from orchestrator.text_output import stdout_fd, write_all
from orchestrator.trouble import Trouble, trouble_of
from worker.protocol.exits import ExitCode


def report(options: RunOptions, answer: Answer, trouble: Trouble | None) -> int:
    """Say how the run ended and return the exit code."""
    if options.json:
        failed = _print(json.dumps(answer.as_json(trouble)) + "\n")
        trouble = trouble or failed
    elif not answer.ends_line:
        end_line()
    if trouble is None:
        say(answer.summary())
        return ExitCode.OK
    if trouble.sentence:
        is_signal = trouble.kind == "interrupted"
        say(trouble.sentence if is_signal else f"error: {trouble.sentence}")
    if answer.bundle is not None and trouble.exit_code != ExitCode.OK:
        say(f"see: orchestrator bundle diagnose {shlex.quote(str(answer.bundle))}")
    return trouble.exit_code


def _print(text: str) -> Trouble | None:
    fd = stdout_fd()
    error = None if fd is None else write_all(fd, text.encode("utf-8", "replace"))
    return None if error is None else trouble_of(error)


def end_line() -> None:
    """Keep what goes to stderr off the text's last line, where both are seen together.

    stdout gets the line break only on a terminal that stderr does not go to.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno()):
            say("")
        elif sys.stdout.isatty():
            _print("\n")
