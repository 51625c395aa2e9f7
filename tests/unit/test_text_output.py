"""Text to stdout: all of it, in order, without holding up the event loop."""

from __future__ import annotations

import asyncio
import os
import pty
from pathlib import Path

import pytest

from orchestrator.interruption import Interrupted
from orchestrator.text_output import OutputClosed, OutputFailed, TextOutput


def test_a_full_pipe_does_not_hold_up_the_loop() -> None:
    text = "é" * 200_000  # More than a pipe holds.

    async def write_and_read() -> str:
        read_fd, write_fd = os.pipe()
        output = TextOutput(write_fd)
        writing = asyncio.create_task(output.write(text))
        # The loop still turns: this runs while the thread waits for the pipe.
        data = await asyncio.to_thread(os.read, read_fd, 1000)
        while len(data) < len(text.encode()):
            data += os.read(read_fd, 65536)
            await asyncio.sleep(0)
        await writing
        output.close()
        os.close(read_fd)
        os.close(write_fd)
        return data.decode()

    assert asyncio.run(write_and_read()) == text


def test_a_reader_that_is_gone_is_told_apart() -> None:
    async def write() -> None:
        read_fd, write_fd = os.pipe()
        os.close(read_fd)
        output = TextOutput(write_fd)
        try:
            await output.write("x")
        finally:
            output.close()
            os.close(write_fd)

    with pytest.raises(OutputClosed):
        asyncio.run(write())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence() -> None:
    async def write() -> None:
        with Path("/dev/full").open("wb") as file:
            output = TextOutput(file.fileno())
            try:
                await output.write("x")
            finally:
                output.close()

    with pytest.raises(OutputFailed, match="cannot write the answer to stdout: No space left"):
        asyncio.run(write())


def test_a_terminal_that_has_gone_is_a_hangup() -> None:
    async def write() -> None:
        master, terminal = pty.openpty()
        os.close(master)
        output = TextOutput(terminal)
        try:
            await output.write("x")
        finally:
            output.close()
            os.close(terminal)

    with pytest.raises(Interrupted, match="interrupted by SIGHUP"):
        asyncio.run(write())


def test_what_the_encoding_lacks_becomes_a_question_mark() -> None:
    async def write() -> bytes:
        read_fd, write_fd = os.pipe()
        output = TextOutput(write_fd, "latin-1")
        await output.write("é日")
        output.close()
        os.close(write_fd)
        data = os.read(read_fd, 10)
        os.close(read_fd)
        return data

    assert asyncio.run(write()) == b"\xe9?"


def test_a_closed_stdout_takes_nothing() -> None:
    asyncio.run(TextOutput(None).write("x"))
