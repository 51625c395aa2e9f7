"""Replies are out before the next op; lines that nobody waits for come behind others, not late."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

import pytest

from worker.channel import BEHIND_S, REPLY_S, Channel, End


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


def test_a_reply_is_out_before_the_next_line_is_worked_on(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.channel.REPLY_S", 5.0)  # as on a machine that is not busy
    os.write(pipes.stdin_write, b"op\n" * 101)
    for _ in range(100):
        assert pipes.channel.take(5.0) == b"op"
        pipes.channel.reply(b"reply\n")
        pipes.channel.take(5.0)
        # Here the next op may end the process.
        assert select.select([pipes.stdout_read], (), (), 0)[0]
        assert pipes.read() == b"reply\n"
        os.write(pipes.stdin_write, b"op\n")


def test_a_reply_that_nobody_reads_holds_up_the_next_line_for_a_moment_only(pipes: Pipes) -> None:
    os.set_blocking(pipes.stdout_write, False)
    while select.select((), [pipes.stdout_write], (), 0)[1]:
        os.write(pipes.stdout_write, b"x" * 4096)
    os.set_blocking(pipes.stdout_write, True)
    os.write(pipes.stdin_write, b"one\ntwo\n")
    pipes.channel.reply(b"first\n")
    begun_s = time.monotonic()
    assert pipes.channel.take(5.0) == b"one"
    assert REPLY_S / 2 <= time.monotonic() - begun_s < 5.0
    pipes.channel.reply(b"second\n")
    assert pipes.channel.take(5.0) == b"two"
    text = b""
    while not text.endswith(b"second\n"):
        text += pipes.read()
    assert text.endswith(b"xfirst\nsecond\n")
