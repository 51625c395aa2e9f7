"""What the user reads of a lost stage says when, where it goes, and what is left to do."""

from __future__ import annotations

from orchestrator.failures import Crashed, HostUnreachable, Hung, Scene, StageFailure
from orchestrator.recovery.words import (
    doing_words,
    first_notice,
    given_up,
    left_behind,
    lost_words,
    moment_of,
)

SCENE = Scene(stage=1, host="beta", phase="idle")
AWAY = Scene(stage=1, host="alpha", phase="connecting")
KILLED = Crashed(SCENE, "was killed by SIGKILL while idle: by someone on that host")
SILENT = Hung(SCENE, "does not answer: nothing came from it for 15 s while idle; it is stopped")
SHUT = HostUnreachable(SCENE, "refuses SSH connections; check that its server runs")
SPARE = StageFailure(AWAY, "did not find /opt/none; give python=")


def test_a_stage_without_an_op_is_idle_only_where_no_answer_hangs_on_it() -> None:
    moments = [moment_of(KILLED, None, answers=answers) for answers in (False, True)]
    assert [lost_words(KILLED, moment) for moment in moments] == [
        "stage 1 on beta was killed by SIGKILL while idle",
        "stage 1 on beta was killed by SIGKILL between two ops of an answer",
    ]


def test_a_silent_stage_is_told_with_the_time_and_what_it_may_hold() -> None:
    assert lost_words(SILENT, "in decode") + left_behind(SILENT, 30604) == (
        "stage 1 on beta does not answer in decode (nothing came from it for 15 s); pid 30604 on "
        "beta may still be there, stopped, and hold its memory: kill it"
    )


def test_each_change_of_host_is_told() -> None:
    def doing(place: str, newest: StageFailure, *, has_served: bool) -> str:
        return doing_words("beta", place, newest, has_served=has_served)

    assert [
        doing("beta", SHUT, has_served=True),
        doing("alpha", SHUT, has_served=True),
        doing("alpha", SHUT, has_served=False),
        doing("beta", SPARE, has_served=False),
    ] == ["restarting", "moving it to alpha", "starting it on alpha instead", "going back to beta"]


def test_a_stage_that_never_served_is_not_called_back() -> None:
    assert [first_notice(1, "beta", host, total_s=1.88) for host in ("alpha", None)] == [
        "stage 1 started on alpha instead of beta after 1.9 s",
        "stage 1 on beta serves now after 1.9 s",
    ]


def test_the_end_says_each_cause_once_and_names_the_spare_that_failed() -> None:
    assert str(given_up(SHUT, SHUT, 3, made=3, elsewhere=[SPARE])) == (
        "stage 1 on beta refuses SSH connections; check that its server runs; the last of 3 "
        "restarts failed in the same way; the spare alpha did not find /opt/none; give python="
    )
    assert str(given_up(SHUT, SPARE, 1, made=1, elsewhere=[SPARE])) == (
        "stage 1 on beta refuses SSH connections; check that its server runs; its restart failed: "
        "stage 1 on alpha did not find /opt/none; give python="
    )
