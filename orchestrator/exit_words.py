"""The exit codes in the help of each command: those that it ends with, in its own words."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from worker.protocol.exits import ExitCode

_WIDTH_CHARS = 92
_HOST_LOST = "a host cannot be reached, or the worker there died, hung or broke the protocol"
_GENERAL: Mapping[ExitCode, str] = {
    ExitCode.OK: "finished",
    ExitCode.UNCAUGHT: "an unexpected error; the traceback is on stderr",
    ExitCode.USAGE: "wrong usage or configuration, or what was asked for cannot be",
    ExitCode.LOAD_FAILED: "the model could not be found, read or supported",
    ExitCode.OUT_OF_MEMORY: "not enough memory or disk for the model; what is free was printed",
    ExitCode.PEER_GONE: _HOST_LOST,
    ExitCode.INTERRUPTED: "ended by Ctrl-C; signal n ends it with 128 + n",
}
# None where the command never ends so.
_OWN: Mapping[str, Mapping[ExitCode, str | None]] = {
    "run": {
        ExitCode.OK: "finished, also where lost stages were brought back",
        ExitCode.UNCAUGHT: "an unexpected error; the traceback is on stderr and in the bundle",
        ExitCode.PEER_GONE: f"{_HOST_LOST}, and could not be brought back",
    },
    "serve": {
        ExitCode.OK: None,
        ExitCode.UNCAUGHT: "an unexpected error; the traceback is on stderr and in the bundle",
        ExitCode.USAGE: "wrong usage or configuration, or the port is taken; nothing was started",
        ExitCode.PEER_GONE: f"{_HOST_LOST}, and will not be brought back (--restarts 0)",
        ExitCode.INTERRUPTED: "ended in order by Ctrl-C; signal n ends it with 128 + n",
    },
    "stage-http": {
        ExitCode.OK: None,
        ExitCode.PEER_GONE: "the worker died, hung or broke the protocol, and the restarts are "
        "used up",
    },
    "fetch": {ExitCode.LOAD_FAILED: "the model could not be found, fetched or supported"},
    "cache": {
        ExitCode.LOAD_FAILED: "bytes are not as they were fetched, or there is nothing to remove",
        ExitCode.OUT_OF_MEMORY: None,
    },
    "doctor": {
        ExitCode.OK: "every host can be used, warnings or not",
        ExitCode.LOAD_FAILED: "only the model cannot be had",
        ExitCode.OUT_OF_MEMORY: None,
        ExitCode.PEER_GONE: "a host cannot be used",
    },
    "setup": {
        ExitCode.OK: "every host has what it needs, or was left alone",
        ExitCode.LOAD_FAILED: None,
        ExitCode.OUT_OF_MEMORY: None,
        ExitCode.PEER_GONE: "a host failed",
    },
}


def exit_words(command: str = "") -> str:
    """Return the exit codes for a help text, of a command or of all."""
    meanings = {**_GENERAL, **_OWN.get(command, {})}
    return "exit codes:\n" + "\n".join(
        textwrap.fill(f"  {code.value:>3}  {text}", _WIDTH_CHARS, subsequent_indent=" " * 7)
        for code, text in meanings.items()
        if text is not None
    )
