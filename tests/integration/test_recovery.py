"""A lost stage comes back with what it knew; what cannot be mended ends in one sentence."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from orchestrator.failures import Crashed, NotReady, SpawnFailed, StageFailure
from orchestrator.recovery import SpareSlot
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec
from orchestrator.stages import Stages
from tests.support.recovery_lab import (
    HASTY,
    QUICK,
    Ask,
    Watch,
    answers,
    history_spec,
    inflict,
)
from tests.support.stages import PATIENT

T = TypeVar("T")

ONE = Ask(1)
EXPECTED = ONE.expected(3)


@dataclass
class Run:
    """A pipeline of three stages, and what was told of it."""

    pipeline: Stages
    watch: Watch
    notices: list[str] = field(default_factory=list)

    async def ask(self, ask: Ask = ONE, **hooks: Any) -> list[list[int]]:
        """Return the answers to the requests."""
        return await answers(self.pipeline, self.watch, ask.requests(), **hooks)

    def killing(self, *stages: int, at: int = 5) -> Callable[[str, int], None]:
        """Return what kills stages once the first request has so many tokens."""

        def on_token(rid: str, count: int) -> None:
            if (rid, count) == ("r0", at):
                for stage in stages:
                    inflict("kill", self.watch.pids[stage])

        return on_token


def specs_of(**model_ids: str) -> list[StageSpec]:
    """Return three stages; `one="kernel:x"` makes the second what history_worker says of it."""
    names = ("zero", "one", "two")
    return [
        history_spec(i, 3, model_id=model_ids.get(name), host=f"host-{i}")
        for i, name in enumerate(names)
    ]


def with_run(
    act: Callable[[Run], Awaitable[T]], specs: Sequence[StageSpec] | None = None, **options: Any
) -> T:
    async def run() -> T:
        watch, notices = Watch(), list[str]()
        options.setdefault("policy", QUICK)
        options.setdefault("timeouts", PATIENT)
        async with await Stages.start(
            specs or specs_of(), recorder=watch, on_notice=notices.append, **options
        ) as pipeline:
            return await act(Run(pipeline, watch, notices))

    return asyncio.run(run())


def spare(host: str, model_id: str | None = None) -> SpareSlot:
    """Return a spare slot of the same kind of worker."""
    own = history_spec(0, 1, model_id=model_id)
    return SpareSlot(
        host, lambda lost: replace(lost, host=host, options=own.options, python=own.python)
    )


def test_the_user_hears_of_the_loss_and_of_the_return() -> None:
    async def act(run: Run) -> tuple[object, ...]:
        got = await run.ask(on_token=run.killing(1))
        (record,) = run.watch.recoveries
        summary = (record.stage, record.host, record.new_host, record.attempt, record.ok)
        restart_ms, replay_ms = record.restart_ms or 0, record.replay_ms or 0
        took = f"(restart {restart_ms / 1e3:.1f} s, replay {replay_ms / 1e3:.1f} s)"
        return got, run.notices[0], run.notices[1].endswith(took), summary, record.requests

    got, lost, ends_well, summary, requests = with_run(act)
    assert (got, ends_well, summary, requests) == (
        EXPECTED,
        True,
        (1, "host-1", "host-1", 1, True),
        1,
    )
    prompt = len(ONE.prompt(0))
    assert lost in {
        f"stage 1 on host-1 was killed by SIGKILL {moment}; restarting (1/3), replaying {n} tokens"
        for moment in ("in decode", "between two ops of an answer")
        for n in range(prompt + 3, prompt + 6)
    }


@pytest.mark.parametrize(
    ("stages", "history_bytes"), [((2,), 0), ((2,), 300), ((1, 2), 0), ((0, 1, 2), 0)]
)
def test_with_little_room_for_histories_the_answer_is_the_same(
    stages: tuple[int, ...], history_bytes: int
) -> None:
    asked = Ask(3, sampled=True)

    async def act(run: Run) -> tuple[object, int]:
        return await run.ask(asked, on_token=run.killing(*stages)), (
            run.pipeline.peak_history_bytes
        )

    got, peak_bytes = with_run(act, policy=replace(QUICK, history_bytes=history_bytes))
    assert (got, peak_bytes <= history_bytes) == (asked.expected(3), True)


def test_stages_that_are_lost_at_once_come_back_each() -> None:
    asked = Ask(8)

    async def act(run: Run) -> tuple[object, list[int]]:
        got = await run.ask(asked, on_token=run.killing(0, 1, 2))
        return got, sorted(record.stage for record in run.watch.recoveries if record.ok)

    assert with_run(act) == (asked.expected(3), [0, 1, 2])


def test_an_idle_stage_comes_back_before_anybody_asks() -> None:
    async def act(run: Run) -> tuple[object, int]:
        first = await run.ask()
        inflict("kill", run.watch.pids[2])
        await run.watch.recovered(1)
        return [first, await run.ask()], len(run.notices)

    assert with_run(act) == ([EXPECTED, EXPECTED], 2)


def test_a_cache_that_the_worker_freed_for_memory_is_rebuilt() -> None:
    asked = Ask(4)

    async def act(run: Run) -> tuple[object, bool, list[str]]:
        got = await run.ask(asked)
        codes = {record.code for record in run.watch.ops if record.code}
        return got, codes == {"no_session"}, run.notices

    assert with_run(act, specs_of(one="budget:500")) == (asked.expected(3), True, [])


def test_an_op_that_got_no_answer_in_time_gets_its_own_from_the_next_stage() -> None:
    async def act(run: Run) -> tuple[list[list[int]], str]:
        os.kill(run.watch.pids[0], signal.SIGSTOP)
        return await run.ask(), run.notices[0]

    got, lost = with_run(act, timeouts=replace(PATIENT, op_s=0.5))
    assert (got, lost) == (
        EXPECTED,
        "stage 0 on host-0 did not answer tokenize within 0.5 s in tokenize; restarting (1/3)",
    )


def test_three_failures_in_a_row_are_one_failure_and_the_next_request_works(tmp_path: Path) -> None:
    doom = tmp_path / "doom"

    async def act(run: Run) -> tuple[str, list[bool], list[list[int]]]:
        doom.touch()
        with pytest.raises(ExceptionGroup) as caught:
            await run.ask(Ask(2), on_token=run.killing(1))
        failures = caught.value.exceptions
        assert {str(failure) for failure in failures} == {str(failures[0])}
        attempts = [record.ok for record in run.watch.recoveries]
        doom.unlink()
        return str(failures[0]), attempts, await run.ask()

    text, attempts, got = with_run(act, specs_of(one=f"doomed:{doom}"))
    assert (attempts, got) == ([False] * 3, EXPECTED)
    assert text.startswith("stage 1 on host-1 was killed by SIGKILL while ")
    assert text.endswith(
        "; 3 restarts failed, the last one so: it was killed by SIGKILL while loading: by someone "
        "or something on that host; nothing here points to memory"
    )


def test_a_request_that_costs_the_stage_each_time_ends_alone() -> None:
    asked = Ask(3, max_new_tokens=30)

    async def act(run: Run) -> tuple[list[list[int]], str, list[list[int]]]:
        deadly = GenerationRequest(request_id="deadly", prompt="die!")
        others = asyncio.ensure_future(run.ask(asked))
        with pytest.raises(ExceptionGroup) as caught:
            await answers(run.pipeline, run.watch, [deadly])
        return await others, str(caught.value.exceptions[0]), await run.ask()

    got, text, after = with_run(act)
    assert (got, after) == (asked.expected(3), EXPECTED)
    assert text.startswith("stage 0 on host-0 was killed by SIGKILL while serving tokenize: ")
    assert text.endswith("; it was restarted 3 times in a row and lost again each time")


def test_a_spare_takes_over_where_the_host_cannot_load_any_more(tmp_path: Path) -> None:
    async def act(run: Run) -> tuple[object, ...]:
        got = await run.ask(on_token=run.killing(1))
        again = await run.ask(on_token=run.killing(1))
        return (
            got,
            again,
            run.pipeline.hosts,
            [r.new_host for r in run.watch.recoveries],
            [notice.partition(";")[0].partition(" after")[0] for notice in run.notices],
        )

    specs = specs_of(one=f"once:{tmp_path / 'started'}")
    got, again, hosts, new_hosts, notices = with_run(
        act, specs, spares=[spare("host-8"), spare("host-9")]
    )
    # The second loss is mended where the stage is by then; the second spare stays free.
    assert (got, again, hosts, new_hosts) == (
        EXPECTED,
        EXPECTED,
        ("host-0", "host-8", "host-2"),
        ["host-1", "host-8", "host-8"],
    )
    assert [notices[1], notices[2], notices[4]] == [
        "stage 1 on host-1 cannot serve: the disk is gone",
        "stage 1 moved from host-1 to host-8 and serves again",
        "stage 1 on host-8 serves again",
    ]


def test_a_spare_that_computes_otherwise_takes_no_answer_that_is_under_way(tmp_path: Path) -> None:
    async def act(run: Run) -> tuple[str, list[list[int]]]:
        with pytest.raises(ExceptionGroup) as caught:
            await run.ask(on_token=run.killing(1))
        return str(caught.value.exceptions[0]), await run.ask()

    specs = specs_of(one=f"once:{tmp_path / 'started'}")
    text, got = with_run(act, specs, spares=[spare("host-9", "kernel:other")])
    assert got == EXPECTED
    assert text.endswith(
        "; 2 restarts failed, the last one so: stage 1 on host-9 cannot take over: it computes "
        "with other kernels (linear other in place of hash), so that answers under way would not "
        "go on as they began; give that host the same model, options and versions"
    )


def test_a_stage_that_never_ran_starts_on_a_spare() -> None:
    specs = specs_of()
    specs[1] = replace(specs[1], python="/nowhere/python")

    async def act(run: Run) -> tuple[object, ...]:
        return await run.ask(), run.pipeline.hosts, len(run.notices)

    expected = (EXPECTED, ("host-0", "host-9", "host-2"), 2)
    assert with_run(act, specs, spares=[spare("host-9")]) == expected


def test_a_spare_that_fails_is_named_where_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "started").touch()
    specs, notices = specs_of(one=f"doomed:{tmp_path / 'started'}"), list[str]()
    bad = spare("host-9")
    bad = replace(bad, spec_for=lambda lost: replace(lost, host="host-9", python="/opt/none"))

    async def run() -> None:
        await Stages.start(
            specs, timeouts=PATIENT, policy=QUICK, spares=[bad], on_notice=notices.append
        )

    with pytest.raises(StageFailure) as caught:
        asyncio.run(run())
    text = str(caught.value)
    assert text.count("was killed by SIGKILL") == 1
    assert "; the last of 3 restarts failed in the same way; the spare host-9 " in text
    assert "/opt/none" in text.partition("the spare host-9")[2]
    done = [notice.partition("; ")[2] for notice in notices]
    assert [words.partition(" in ")[0] for words in done] == [
        "restarting (1/3)",
        "starting it on host-9 instead (2/3)",
        "going back to host-1 (3/3)",
    ]


def test_what_no_restart_mends_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "started").touch()
    cannot_load = specs_of(one=f"once:{tmp_path / 'started'}")
    cannot_run = [replace(spec, python="/nowhere/python") for spec in specs_of()]
    caught: list[StageFailure] = []
    for specs in (cannot_load, cannot_run):
        with pytest.raises(StageFailure) as failure:
            with_run(lambda run: run.ask(), specs)
        caught.append(failure.value)
    assert [type(failure) for failure in caught] == [NotReady, SpawnFailed]
    assert str(caught[0]) == "stage 1 on host-1 cannot serve: the disk is gone"


def test_cancelling_a_request_and_closing_wait_for_no_restart(tmp_path: Path) -> None:
    async def act(run: Run) -> float:
        asking = asyncio.ensure_future(run.ask(on_token=run.killing(1)))
        while len(run.notices) < 1:
            await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await run.pipeline.aclose()
        return loop.time() - begun_s

    # The ladder's first rung is for a worker that loads and reads its stdin: that is soon.
    assert with_run(act, specs_of(one=f"late:{tmp_path / 'started'}")) < 5


def test_without_recovery_the_first_failure_ends_the_pipeline() -> None:
    async def act(run: Run) -> list[str]:
        texts = []
        for hook in (run.killing(1), run.killing()):
            with pytest.raises(ExceptionGroup) as caught:
                await run.ask(on_token=hook)
            (failure,) = caught.value.exceptions
            assert isinstance(failure, Crashed)
            texts.append(str(failure))
        return texts

    first, second = with_run(act, policy=replace(QUICK, most_attempts=0))
    assert first == second


@pytest.mark.parametrize("transport", ["local", "command"])
def test_a_stopped_stage_is_found_while_idle(transport: Literal["local", "command"]) -> None:
    specs = specs_of()
    if transport == "command":
        specs[1] = replace(specs[1], transport=transport, command=("env",), code="installed")

    async def act(run: Run) -> tuple[object, int, str]:
        pid = run.watch.pids[1]
        inflict("stop", pid)
        await run.watch.recovered(1)
        return await run.ask(), pid, run.notices[0]

    got, pid, lost = with_run(act, specs, timeouts=HASTY)
    told = (
        "stage 1 on host-1 does not answer while idle (nothing came from it for 1.5 s); "
        "restarting (1/3)"
    )
    # What is stopped behind a launcher may outlive it; here nothing can.
    left = f"; pid {pid} on host-1 may still be there, stopped, and hold its memory: kill it"
    assert (got, lost) == (EXPECTED, told + left * (transport == "command"))
