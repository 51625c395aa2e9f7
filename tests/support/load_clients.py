"""Clients of a server under load: those that behave, and those that do not.

Each knows what the stages answer to its prompt, so an answer that is lost, cut or another's shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random

from tests.support.load_tally import Question, Tally

PATH = "/v1/completions"
# What comes in place of a request: another protocol, no head, no JSON, JSON of the wrong kind.
NO_REQUEST = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)) + b"\r\n\r\n",
    b"GET / nothing\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
)
NO_BODY = (b"{", bytes(range(256)), b"[" * 9000, b"null", b'{"model": 1}', b'{"prompt": [[]]}')


@dataclass(frozen=True, slots=True)
class Reply:
    """The head of an answer, and where its body comes from."""

    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes.

        Raises:
            IncompleteReadError: it was cut.
        """
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self.reader.readexactly(int(self.headers["content-length"]))
            return
        while size := int(await self.reader.readline() or b"x", 16):
            yield (await self.reader.readexactly(size + 2))[:-2]


class LoadClient:
    """One client, with an address of its own on loopback.

    Args:
        number: of the client.
        server: host and port.
        tally: where its requests are counted.
    """

    def __init__(self, number: int, server: tuple[str, int], tally: Tally) -> None:
        self.random = Random(number)
        self._server = server
        self._own = (f"127.0.{1 + number // 200}.{1 + number % 200}", 0)
        self._tally = tally

    async def read(self, question: Question) -> None:
        """Read a stream to its end."""
        await self._stream(question, "reads", 0)

    async def read_slowly(self, question: Question) -> None:
        """Read a stream with pauses."""
        await self._stream(question, "reads slowly", 0.02)

    async def ask_whole(self, question: Question) -> None:
        """Ask for the answer in one piece."""
        async with self._asked(question, stream=False) as (reply, begun_s):
            if await self._is_refused("asks whole", reply):
                return
            body = json.loads(b"".join([piece async for piece in reply.pieces()]))
            choice = body["choices"][0]
            told = (choice["text"], choice["finish_reason"], body["usage"]["completion_tokens"])
            self._judge("asks whole", question, told, begun_s, None)

    async def send_slowly(self, question: Question) -> None:
        """Send the body in ten pieces with pauses."""
        async with self._asked(question, pause_s=0.05) as (reply, begun_s):
            await self._follow("sends slowly", question, reply, begun_s, 0)

    async def vanish(self, question: Question) -> None:
        """Go away in mid-stream."""
        async with self._asked(question) as (reply, _):
            if await self._is_refused("vanishes", reply):
                return
            left = self.random.randrange(4)
            async for _piece in reply.pieces():
                left -= 1
                if left <= 0:
                    break
            self._tally.end("vanishes", "gone")

    async def send_garbage(self, _question: Question) -> None:
        """Send what is no request, or a body that is none; only a refusal may come back."""
        is_body = self.random.random() < 0.5
        sent = self.random.choice(NO_BODY if is_body else NO_REQUEST)
        status = None
        # A server that has read enough may reset the connection.
        with contextlib.suppress(ConnectionError):
            async with self._connected() as (reader, writer):
                # The third way is a body that breaks off.
                size = len(sent) + 1000 * self.random.randrange(2)
                writer.write((_head(size) if is_body else b"") + sent)
                if not is_body or size > len(sent):
                    writer.write_eof()
                line = await reader.readline()
                status = int(line.split()[1]) if line else None
        is_right = status is None or 400 <= status < 500
        fault = None if is_right else f"{sent[:20]!r} was answered with status {status}"
        self._tally.end("sends garbage", "refused", fault)
        await asyncio.sleep(0.1)

    async def _stream(self, question: Question, kind: str, pause_s: float) -> None:
        async with self._asked(question) as (reply, begun_s):
            await self._follow(kind, question, reply, begun_s, pause_s)

    async def _follow(
        self, kind: str, question: Question, reply: Reply, begun_s: float, pause_s: float
    ) -> None:
        if await self._is_refused(kind, reply):
            return
        first_s, read = None, b""
        async for piece in reply.pieces():
            if first_s is None and piece.startswith(b"data: "):  # no comment that it still works
                first_s = time.perf_counter() - begun_s
            read += piece
            await asyncio.sleep(pause_s)
        lines = [line.removeprefix("data: ") for line in read.decode().split("\n\n") if line]
        events = [json.loads(line) for line in lines if line[0] == "{"]
        if lines[-1] != "[DONE]" or "error" in events[-1]:
            self._tally.end(kind, "broken", f"the stream ended with {lines[-1]:.200}")
            return
        choices = [one["choices"][0] for one in events if one["choices"]]
        text = "".join(one["text"] for one in choices)
        tokens = events[-1]["usage"]["completion_tokens"]
        told = (text, choices[-1]["finish_reason"], tokens)
        self._judge(kind, question, told, begun_s, first_s)

    def _judge(
        self,
        kind: str,
        question: Question,
        told: tuple[str, str | None, int],
        begun_s: float,
        first_s: float | None,
    ) -> None:
        right = (question.answer, "length", question.max_tokens)
        self._tally.end(
            kind,
            "answered" if told == right else "wrong",
            None if told == right else f"{question.prompt[:20]!r} was answered {told}, not {right}",
        )
        self._tally.total_s.append(time.perf_counter() - begun_s)
        if first_s is not None:
            self._tally.ttft_s.append(first_s)

    async def _is_refused(self, kind: str, reply: Reply) -> bool:
        """Tell whether there is no answer; wait a little if it is for now."""
        if reply.status == 200:
            return False
        body = b"".join([piece async for piece in reply.pieces()])
        wait_s = int(reply.headers.get("retry-after", 0))
        if reply.status == 429 and wait_s >= 1:
            self._tally.end(kind, "429")
            # Often less than it is told to, for the sake of the load.
            await asyncio.sleep(self.random.uniform(0.1, 0.5))
        else:
            fault = f"status {reply.status}, retry after {wait_s} s: {body.decode()[:300]}"
            self._tally.end(kind, "failed", fault)
        return True

    @contextlib.asynccontextmanager
    async def _asked(
        self, question: Question, *, stream: bool = True, pause_s: float = 0
    ) -> AsyncIterator[tuple[Reply, float]]:
        asked = {"model": "stub", "prompt": question.prompt, "max_tokens": question.max_tokens}
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        body = json.dumps({**asked, **more, "temperature": 0}).encode()
        async with self._connected() as (reader, writer):
            begun_s = time.perf_counter()
            writer.write(_head(len(body)))
            step = len(body) if not pause_s else len(body) // 10 + 1
            for at in range(0, len(body), step):
                writer.write(body[at : at + step])
                await asyncio.sleep(pause_s)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.partition(": ") for line in head[1:] if line)
            headers = {name.lower(): value for name, _, value in pairs}
            yield Reply(int(head[0].split()[1]), headers, reader), begun_s

    @contextlib.asynccontextmanager
    async def _connected(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        host, port = self._server
        reader, writer = await asyncio.open_connection(host, port, local_addr=self._own)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


def _head(size: int) -> bytes:
    """Return the head of a request with a body of that many bytes."""
    lines = (
        f"POST {PATH} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Connection: close",
        f"Content-Length: {size}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
