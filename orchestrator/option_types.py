"""How values of the command line are read; each mistake is one sentence."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable

from orchestrator.host_keys import MAX_SLOTS, read_device
from worker.protocol import schema
from worker.protocol.environment import why_not_given

MAX_CONNECTIONS = 64


def number(rule: schema.Rule) -> Callable[[str], float]:
    """Return a reader of numbers that keep the rule."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not rule.accepts(value):
            raise argparse.ArgumentTypeError(f"{text!r} must be {rule.expects}")
        return value

    return read


def count(text: str) -> int:
    """Read a whole number from 1 on."""
    return _integer(text, 1)


def whole(text: str) -> int:
    """Read a whole number from 0 on."""
    return _integer(text, 0)


def slots(text: str) -> int:
    """Read a number of stages on one host."""
    value = _integer(text, 1)
    if value > MAX_SLOTS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MAX_SLOTS} stages")
    return value


def connections(text: str) -> int:
    """Read a number of connections to a hub."""
    value = _integer(text, 1)
    if value > MAX_CONNECTIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MAX_CONNECTIONS} connections")
    return value


def origin(text: str) -> str:
    """Read the origin of a web page, or `*`."""
    scheme, separator, rest = text.partition("://")
    if text != "*" and (not separator or not scheme or not rest or "/" in rest):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no origin; give scheme and host, as https://chat.example.org"
        )
    return text


def stop(text: str) -> str:
    """Read a stop string."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text would end the answer at once; give a text")
    return text


def words(text: str) -> str:
    """Read a command with options; returned as it is."""
    try:
        split = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be split into words: {error}") from None
    if not split:
        raise argparse.ArgumentTypeError("is empty; give an ssh client")
    return text


def salloc_options(text: str) -> str:
    """Read options of salloc; returned as they are."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be split into words: {error}") from None
    return text


def folder(text: str) -> str:
    """Read a folder on another host, or here."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a folder")
    return text


def variable(text: str) -> str:
    """Read the name of a variable that a worker can be given."""
    if (why := why_not_given(text)) is not None:
        raise argparse.ArgumentTypeError(f"{why}; give it as env.{text}= in the hosts file")
    return text


def device(text: str) -> str:
    """Read a device's name."""
    try:
        return read_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least {least}")
    return value
