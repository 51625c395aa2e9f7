"""Where the prompt comes from, and how it is put to the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from orchestrator.run_options import RunOptions


class PromptError(Exception):
    """There is no usable prompt; one sentence."""


def read_prompt(options: RunOptions) -> str:
    """Return the prompt that the options name, else stdin's text.

    Raises:
        PromptError: there is none, it is empty, or it is no Unicode text.
    """
    prompt = options.prompt if options.prompt is not None else _from_file(options.prompt_file)
    stops = (("stop text", stop) for stop in options.stop)
    for name, text in (("prompt", prompt), ("system message", options.system or ""), *stops):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the {name} is not UTF-8 at character {error.start + 1}; give it as UTF-8 text"
            ) from None
    if not prompt and not options.raw:
        raise PromptError(
            "the prompt is empty; give some text with --prompt, --prompt-file or on stdin"
        )
    return prompt


def as_messages(prompt: str, system: str | None) -> tuple[dict[str, Any], ...]:
    """Return the chat messages of one question."""
    user = {"role": "user", "content": prompt}
    return (user,) if system is None else ({"role": "system", "content": system}, user)


def _from_file(name: str | None) -> str:
    if name is None and (sys.stdin is None or sys.stdin.isatty()):
        raise PromptError(
            "there is no prompt; give --prompt TEXT, --prompt-file FILE or pipe one in"
        )
    source = "stdin" if name in (None, "-") else str(name)
    try:
        data = sys.stdin.buffer.read() if name in (None, "-") else Path(str(name)).read_bytes()
    except OSError as error:
        raise PromptError(
            f"cannot read the prompt from {source} ({error.strerror}); give a text file"
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"the prompt from {source} is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    # An editor or echo adds it; it is not meant. More than one is.
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
