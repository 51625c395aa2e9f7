"""Every deadline of the orchestrator, by name, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait for what.

    Attributes:
        hello_s: from the first login to the worker's first protocol line; logins that are dropped
            and tried again, and sending the code, are part of it, waiting for a turn is not.
        quiet_s: without an answer for this long, the user is told that the host is waited for.
        login_pause_s: before a dropped login is tried again; doubled each time, with jitter.
        most_login_pause_s: what the pauses grow to.
        ready_s: from there, or from the last byte that was told to be fetched, to the ready line;
            loading a model is part of it, fetching takes as long as it goes on.
        survey_s: from there to the end of a worker that surveys its host.
        errand_s: the same for another errand, or from the last byte fetched or checked.
        others_s: from the first host that cannot be surveyed to the end of the survey; until then
            others that fail are named too.
        op_s: for one op's reply, unless the caller says otherwise.
        silence_s: with an op in flight, this long without a byte in either direction means the
            stage hangs; a worker answers pings also while it computes. On top comes what the
            lines in flight take at 1 Mbit/s, half a minute at most.
        idle_silence_s: the same with no op in flight; while a stage loads, libraries may keep its
            interpreter busy.
        tick_s: how often pings are sent (it keeps TCP warm) and silence is measured, in flight.
        idle_ping_s: how often pings are sent otherwise; it renews the worker's lease.
        drain_s: for the last lines of a process that has ended.
        half_closed_s: for the end of a process that has closed its stdout.
        exit_s: rung 1 of the ladder: after `shutdown` and the end of stdin. A worker takes 2 s at
            most, whatever it does.
        terminate_s: rung 2: after SIGTERM.
        mute_s: most of rung 1, and of rung 2, for a stage that does not answer a ping meanwhile: it
            is stopped, connecting, or its link is dead, and asking it to end is vain.
        kill_s: rung 3: after SIGKILL.
    """

    hello_s: float = 60.0
    quiet_s: float = 10.0
    login_pause_s: float = 0.4
    most_login_pause_s: float = 4.0
    ready_s: float = 3600.0
    survey_s: float = 600.0
    errand_s: float = 3600.0
    others_s: float = 15.0
    op_s: float = 600.0
    silence_s: float = 15.0
    idle_silence_s: float = 120.0
    tick_s: float = 0.1
    idle_ping_s: float = 3.0
    drain_s: float = 1.0
    half_closed_s: float = 2.0
    exit_s: float = 5.0
    terminate_s: float = 2.0
    mute_s: float = 1.5
    kill_s: float = 5.0
