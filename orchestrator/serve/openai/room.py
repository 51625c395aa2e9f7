"""Whether the answers to one request can ever be under way together."""

from __future__ import annotations

from orchestrator.serve.desk import Desk
from orchestrator.serve.errors import refusal


def check_room(desk: Desk, n: int, prompts: int = 1) -> None:
    """Refuse what would be sent away however idle the server is.

    Args:
        desk: where each answer asks for a place.
        n: answers to each prompt.
        prompts: how many there are.

    Raises:
        ApiError: there are more answers than places and room in the queue.
    """
    if n * prompts <= desk.room:
        return
    bound = f"{desk.room} (--max-concurrent and --max-queue of the server together)"
    if prompts == 1:
        raise refusal("n", f"'n' is {n}, it must be an integer from 1 to {bound}")
    raise refusal(
        "prompt",
        f"{prompts} prompts with n = {n} ask for {n * prompts} answers, at most {bound} are given "
        "to one request; send several requests",
    )
