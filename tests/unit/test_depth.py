"""How much is guessed: never at much of a loss, and much where it is worth it."""

from __future__ import annotations

import pytest

from orchestrator.speculation.depth import Depth
from orchestrator.speculation.pass_costs import PassCosts
from orchestrator.speculation.path import Verdict

PLAIN_S = 0.1


def decode(num_tokens: int, row_cost: float, chance: float) -> tuple[float, int]:
    """Decode where each row more costs so many plain passes; return the time and the guesses.

    Guesses are right by turns, so often as the chance says. The first pass of up to 4 rows, and
    the first of more, takes as long as those rows one by one besides.
    """
    costs = PassCosts(16 if row_cost < 0.5 else 1, lambda: 0.0)
    depth = Depth(costs, num_stages=1)
    elapsed_s, done, guesses, luck = 0.0, 0, 0, 0.0
    tried = set[bool]()
    while done < num_tokens:
        count = depth.first([1] * 15, num_tokens - done)
        rows, is_large = count + 1, count > 3
        is_trial = count > 0 and is_large not in tried
        took_s = PLAIN_S * (1 + row_cost * count + (rows if is_trial else 0))
        tried |= {is_large} if count else set()
        right, was_sent = 0, count > 0
        for _ in range(max(1, count)):
            luck += chance
            is_right = luck >= 1
            luck -= is_right
            depth.guessed(Verdict(1, is_right, was_sent))
            if not is_right:
                break
            right += was_sent
        depth.took(1 + right, took_s, rows=rows, is_plain=not was_sent)
        if count:
            costs.sent(rows)
            costs.packed(rows, took_s, was_first=True)
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
    assert [round(costs.surplus(2), 3) for costs in (near, far, alone)] == [0.1, 0.01, 1.0]


def test_what_workers_do_once_is_not_taken_for_the_cost_of_rows() -> None:
    costs = PassCosts(16, lambda: 0.0)
    costs.plain(PLAIN_S)
    before = costs.trial(4)
    costs.sent(4)
    for _ in range(3):
        costs.packed(4, 6 * PLAIN_S, was_first=True)
    first = costs.surplus(4)
    costs.packed(4, 1.1 * PLAIN_S, was_first=True)
    assert [round(found, 3) for found in (before, first, costs.trial(2), costs.surplus(4))] == [
        7.0,
        0.3,
        0.0,
        0.1,
    ]


def test_the_largest_pack_is_tried_with_as_few_rows_as_will_do() -> None:
    costs = PassCosts(16, lambda: 0.99 * PLAIN_S)
    depth = Depth(costs, num_stages=1)
    for _ in range(9):
        depth.took(1, PLAIN_S, rows=1, is_plain=True)
    sure = [9] * 15
    first = depth.first(sure, 200)
    costs.sent(1 + first)
    assert (first, depth.first(sure, 200)) == (4, 15)


def test_guesses_that_may_well_be_wrong_go_in_passes_of_their_own_where_there_is_room() -> None:
    costs = PassCosts(16, lambda: 0.99 * PLAIN_S)
    costs.sent(16)
    found = []
    for num_stages in (1, 6):
        depth = Depth(costs, num_stages)
        depth.took(1, PLAIN_S, rows=1, is_plain=True)
        doubtful = [4] * 15
        count = depth.first(doubtful, 200)
        found.append((count, depth.behind(doubtful[count:], doubtful[:count], 200) > 0))
    assert found[0][0] > found[1][0] == 3
    assert found[1][1]


def test_what_one_request_learned_of_guesses_is_believed_by_the_next_one() -> None:
    costs = PassCosts(16, lambda: 0.99 * PLAIN_S)
    costs.sent(16)
    counts = []
    for _ in range(2):
        depth = Depth(costs, num_stages=1)
        depth.took(1, PLAIN_S, rows=1, is_plain=True)
        counts.append(depth.first([2] * 15, 200))
        for _ in range(30):
            depth.guessed(Verdict(2, is_right=True))
    assert counts[0] < counts[1] == 15


def test_a_time_that_a_restart_took_is_no_loss_of_the_guesses() -> None:
    costs = PassCosts(16, lambda: 0.0)
    depth = Depth(costs, num_stages=1)
    for _ in range(100):
        depth.took(1, PLAIN_S, rows=1, is_plain=True)
    depth.took(1, 60.0, rows=2, is_plain=False)
    assert depth.may_try
