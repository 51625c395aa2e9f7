"""Lines that nobody waits for are written behind others, and never lost or late."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from worker.channel import BEHIND_S, Channel, End


class Pipes:
    """A channel whose stdin stays empty, and the end that reads its stdout."""

    def __init__(self) -> None:
        self.stdin_read, self.stdin_write = os.pipe()
        self.stdout_read, self.stdout_write = os.pipe()
        self.ends: list[End] = []
        self.is_finished = False
        self.channel = Channel(self.stdin_read, self.stdout_write, self.ends.append)
        self.channel.start()

    def read(self) -> bytes:
        """Return what one read gives."""
        return os.read(self.stdout_read, 1 << 20)

    def finish(self, line: bytes) -> None:
        """End the writer."""
        self.channel.finish(line, 0.0 if self.is_finished else 5.0)
        self.is_finished = True

    def close(self) -> None:
        """End both threads."""
        self.finish(b"")
        os.close(self.stdin_write)
        self.channel.take(5.0)
        for fd in (self.stdin_read, self.stdout_read, self.stdout_write):
            os.close(fd)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


def test_a_line_behind_comes_alone_when_no_other_does(pipes: Pipes) -> None:
    pipes.channel.send_behind(b"event\n")
    begun_s = time.monotonic()
    assert pipes.read() == b"event\n"
    assert time.monotonic() - begun_s >= BEHIND_S / 2


def test_lines_behind_come_in_one_write_with_the_next_line_and_before_it(pipes: Pipes) -> None:
    pipes.channel.send_behind(b"one\n")
    pipes.channel.send_behind(b"two\n")
    pipes.channel.send(b"reply\n")
    assert pipes.read() == b"one\ntwo\nreply\n"


def test_the_last_line_is_written_after_what_is_held(pipes: Pipes) -> None:
    pipes.channel.send_behind(b"event\n")
    pipes.finish(b"exiting\n")
    assert pipes.read() == b"event\nexiting\n"
