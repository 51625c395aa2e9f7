"""Work that is done only as long as the client waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def while_present(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns; it is cancelled when the client goes away.

    Args:
        receive: of the request, whose body has been read.
        work: what to do.

    Raises:
        ClientDisconnect: the client went away, and the work has ended.
        Exception: the work's own.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
