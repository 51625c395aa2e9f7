"""What answers the questions of browsers on behalf of pages of other sites."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

_REMEMBERED_S = 600


def cross_origin(
    origins: Sequence[str], methods: Sequence[str], exposed: Sequence[str] = ()
) -> list[Middleware]:
    """Return the middleware for an app; none where no other site may ask.

    Args:
        origins: sites whose pages may ask, as browsers name them; "*" is every one.
        methods: with which.
        exposed: headers of responses that they may read, beside the usual ones.
    """
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=list(methods),
            allow_headers=["*"],
            expose_headers=list(exposed),
            max_age=_REMEMBERED_S,
        )
    ]
