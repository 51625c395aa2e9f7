"""How much is guessed: never at much of a loss, and much where it is worth it."""

from __future__ import annotations

import pytest

from orchestrator.speculation.depth import Depth
from orchestrator.speculation.pass_costs import PassCosts, size_of
from orchestrator.speculation.path import Verdict

PLAIN_S = 0.1


def decode(num_tokens: int, row_cost: float, chance: float) -> tuple[float, int]:
    """Decode where each row more costs so many plain passes; return the time and the guesses.

    Guesses are right by turns, so often as the chance says. A number of rows takes as long as
    those rows one by one when it is the first of its size.
    """
    costs = PassCosts(16 if row_cost < 0.5 else 1, lambda: 0.0)
    depth = Depth(costs, num_stages=1)
    elapsed_s, done, guesses, luck = 0.0, 0, 0, 0.0
    tried = {1}
    while done < num_tokens:
        count = depth.first([1] * 15, num_tokens - done)
        size = size_of(count + 1)
        took_s = PLAIN_S * (1 + row_cost * count + (0 if size in tried else size))
        tried.add(size)
        right, was_sent = 0, count > 0
        for _ in range(max(1, count)):
            luck += chance
            is_right = luck >= 1
            luck -= is_right
            depth.guessed(Verdict(1, is_right, was_sent))
            if not is_right:
                break
            right += was_sent
        depth.took(1 + right, took_s, rows=count + 1, is_plain=not was_sent)
        if count:
            costs.packed(count + 1, took_s, was_first=True)
        elapsed_s, done, guesses = elapsed_s + took_s, done + 1 + right, guesses + count
    return elapsed_s / done * num_tokens, guesses


@pytest.mark.parametrize("row_cost", [0.0, 0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("num_tokens", [32, 256])
def test_a_text_of_which_nothing_is_guessed_costs_a_twentieth_at_most(
    row_cost: float, num_tokens: int
) -> None:
    assert decode(num_tokens, row_cost, chance=0.0)[0] <= num_tokens * PLAIN_S / 0.95


@pytest.mark.parametrize("row_cost", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("chance", [0.02, 0.1, 0.3, 0.6, 0.9])
def test_guesses_that_are_seldom_right_cost_no_more(row_cost: float, chance: float) -> None:
    assert decode(256, row_cost, chance)[0] <= 256 * PLAIN_S / 0.95


@pytest.mark.parametrize(("row_cost", "least_gain"), [(0.0, 2.5), (0.05, 2.2), (0.3, 1.2)])
def test_guesses_that_are_mostly_right_are_used(row_cost: float, least_gain: float) -> None:
    elapsed_s, _ = decode(256, row_cost, chance=0.9)
    assert 256 * PLAIN_S / elapsed_s >= least_gain


def test_rows_that_are_worked_on_one_by_one_are_not_worth_a_guess() -> None:
    assert decode(256, 1.0, chance=0.7) == (pytest.approx(256 * PLAIN_S), 0)


def test_nothing_is_guessed_before_a_plain_pass_was_seen() -> None:
    depth = Depth(PassCosts(16, lambda: 0.0), num_stages=4)
    assert (depth.first([1], 9), depth.behind([1], [], 9), depth.may_try) == (0, 0, False)


def test_a_row_is_taken_to_cost_little_where_links_take_the_time() -> None:
    near, far = PassCosts(16, lambda: 0.0), PassCosts(16, lambda: 0.9 * PLAIN_S)
    alone = PassCosts(1, lambda: 0.0)
    for costs in (near, far, alone):
        costs.plain(PLAIN_S)
    assert [round(costs.surplus(2), 3) for costs in (near, far, alone)] == [0.25, 0.025, 1.0]


def test_what_workers_do_once_is_not_taken_for_the_cost_of_rows() -> None:
    costs = PassCosts(16, lambda: 0.0)
    costs.plain(PLAIN_S)
    before = costs.trial(4)
    costs.packed(4, 6 * PLAIN_S, was_first=True)
    first = costs.surplus(4)
    costs.packed(4, 1.1 * PLAIN_S, was_first=True)
    assert (before, first, costs.trial(4), round(costs.surplus(4), 3)) == (4.0, 0.75, 0.0, 0.1)


def test_a_time_that_a_restart_took_is_no_loss_of_the_guesses() -> None:
    costs = PassCosts(16, lambda: 0.0)
    depth = Depth(costs, num_stages=1)
    for _ in range(100):
        depth.took(1, PLAIN_S, rows=1, is_plain=True)
    depth.took(1, 60.0, rows=2, is_plain=False)
    assert depth.may_try
