"""Whether a server may listen where it is told to: nobody gets in unasked."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.config import API_KEY
from orchestrator.serve.keys import Keys, KeysError
from orchestrator.serve.listener import Listener


def check_openness(
    listener: Listener, keys: Keys, no_key_because: str | None, warn: Callable[[str], None]
) -> None:
    """See that a server beyond this machine asks for keys, or that a reason is given.

    Raises:
        KeysError: neither is so.
    """
    if listener.is_loopback or keys:
        return
    if not no_key_because:
        raise KeysError(
            f"--host {listener.host} is reachable from other machines and no API key is set; set "
            f"{API_KEY} or give --api-key-file, or --no-api-key-because with the reason"
        )
    warn(
        f"warning: everybody who reaches port {listener.port} of {listener.host} may use this "
        f"server, because {no_key_because}"
    )
