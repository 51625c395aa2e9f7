"""A server behind the chat page whose answers follow a script: `python -m … [KEY]`.

The last message says what happens: `say TEXT` streams the text, `forever` streams until the client
leaves, `cut` ends at the limit, `break` ends with an error in mid-answer, `vanish` without a word,
`refuse` before the first byte. Says its address in the first line of stdout; ends with stdin.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.serve.errors import ApiError
from orchestrator.serve.page.routes import show_file, show_page

LOST = "stage 1 on node-b.lan was killed by SIGKILL in decode; restarts did not help"


class Script:
    """Answers as it is told, and knows how many answers are under way."""

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._running = 0
        self._tokens = 0

    async def status(self, request: Request) -> Response:
        """Tell of two stages."""
        self._check(request)
        stages = [
            {
                "stage": stage,
                "host": host,
                "device": "cuda:0",
                "quantization": "bfloat16",
                "layers": layers,
                "state": state,
                "busy_share": share,
            }
            for stage, host, layers, state, share in (
                (0, "node-a.lan", [0, 13], "ready", 0.62),
                (1, "node-b.lan", [13, 30], "recovering", 0.48),
                (2, "a-host-with-a-long-name.rack-17.example.org", [30, 36], "ready", 0.11),
            )
        ]
        return JSONResponse(
            {
                "model": "scripted/model-8B",
                "num_layers": 36,
                "max_context": 4096,
                "max_new_tokens": 3,
                "stages": stages,
                "running": self._running,
                "queued": 2,
                "places": 16,
                "is_draining": False,
                "generated_tokens": self._tokens,
                "prompt_tokens": 200,
                "cached_tokens": 150,
                "failure": None,
            }
        )

    async def chat(self, request: Request) -> Response:
        """Answer."""
        self._check(request)
        body = await request.json()
        assert body["model"] == "scripted/model-8B", body
        text = body["messages"][-1]["content"]
        if text == "refuse":
            raise ApiError(400, "the prompt has 5000 tokens; at most 4096 are served here")
        if text == "messages":
            text = "say " + json.dumps(body["messages"][:-1])
        return StreamingResponse(self._stream(text), media_type="text/event-stream")

    async def _stream(self, text: str) -> AsyncIterator[str]:
        self._running += 1
        count = 0
        try:
            kind, _, rest = text.partition(" ")
            words = rest.split(" ") if kind == "say" else ["one", "two", "three"]
            while kind == "forever" or count < len(words):
                word = words[count % len(words)]
                yield event(delta={"content": (" " if count else "") + word})
                count, self._tokens = count + 1, self._tokens + 1
                await asyncio.sleep(0.02 if kind == "forever" else 0)
            if kind == "break":
                yield f"data: {json.dumps({'error': {'message': LOST}})}\n\n"
                return
            if kind == "vanish":
                return
            yield event(finish_reason="length" if kind == "cut" else "stop")
            usage = {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": 9 + count}
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self._running -= 1

    def _check(self, request: Request) -> None:
        if self._key and request.headers.get("authorization") != f"Bearer {self._key}":
            raise ApiError(401, "the API key is missing or wrong")


def event(delta: dict[str, Any] | None = None, finish_reason: str | None = None) -> str:
    """Return one event of an answer."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish_reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


async def tell(request: Request, error: Exception) -> Response:
    """Answer with the error."""
    assert isinstance(error, ApiError)
    return error.response()


async def main(key: str | None) -> None:
    """Serve until stdin ends."""
    script = Script(key)
    app = Starlette(
        routes=[
            Route("/", show_page),
            Route("/page/{name}", show_file),
            Route("/stageline/status", script.status),
            Route("/v1/chat/completions", script.chat, methods=["POST"]),
        ],
        exception_handlers={ApiError: tell},
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = server.force_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
