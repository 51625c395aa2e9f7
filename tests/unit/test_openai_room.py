"""A request that never comes in, however idle the server is, is no matter of waiting."""

from __future__ import annotations

import pytest

from orchestrator.serve.desk import Desk
from orchestrator.serve.errors import ApiError
from orchestrator.serve.openai.room import check_room

BOUND = "3 (--max-concurrent and --max-queue of the server together)"


@pytest.mark.parametrize(
    ("n", "prompts", "param", "message"),
    [
        (4, 1, "n", f"'n' is 4, it must be an integer from 1 to {BOUND}"),
        (2, 2, "prompt", f"2 prompts with n = 2 ask for 4 answers, at most {BOUND} are given to"),
    ],
)
def test_more_answers_than_places_and_queue_are_refused_by_name(
    n: int, prompts: int, param: str, message: str
) -> None:
    with pytest.raises(ApiError) as refused:
        check_room(Desk(places=1, queue=2), n, prompts)
    error = refused.value
    assert (error.status, error.param) == (400, param)
    assert error.message.removesuffix(" one request; send several requests") == message


@pytest.mark.parametrize(("n", "prompts"), [(1, 1), (3, 1), (1, 3)])
def test_as_many_as_fit_are_left_to_the_desk(n: int, prompts: int) -> None:
    check_room(Desk(places=1, queue=2), n, prompts)
