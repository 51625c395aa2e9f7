"""Runs that lost a stage, or were refused by one."""

from __future__ import annotations

from tests.support.bundles.run import Run
from tests.support.bundles.tape import HOSTS, T0_MS
from worker.protocol.events import OpTraceback, UncaughtException


def killed_worker(run: Run) -> None:
    run.start()
    run.generate()
    run.fail(1, "crashed", "was killed by SIGKILL while serving", "serving forward_and_sample")
    run.ended(1, signal="SIGKILL")
    run.at(run.now_ms + 5).ended(0, signal="SIGKILL", expected=True)
    run.close(5, "stage 1 on beta was killed by SIGKILL while serving")


def killed_for_memory(run: Run) -> None:
    run.hello(1)
    run.fetch(1)
    run.load(1, rss_mb=7_700.0)
    run.ended(1, code=137)
    run.close(5)


def killed_remote_neighbour(run: Run) -> None:
    """The neighbour's broken pipe is noticed first, yet it is the symptom."""
    run.start()
    run.ended(0, code=5)
    run.at(run.now_ms + 20).ended(1, signal="SIGSEGV")
    run.stderr(1, "Fatal Python error: Segmentation fault\n")
    run.close(5)


def hung(run: Run) -> None:
    run.start()
    run.generate()
    run.at(run.now_ms + 10_000).fail(1, "hung", "said nothing for 10 s", "serving")
    run.ended(1, signal="SIGKILL", expected=True)
    run.ended(0, code=0, expected=True)
    run.close(5, "stage 1 on beta said nothing for 10 s")


def uncaught(run: Run) -> None:
    run.start()
    run.event(
        0, UncaughtException(error="boom", error_type="RuntimeError", traceback="Traceback\nboom")
    )
    run.ended(0, code=1)
    run.close(5)


def garbage(run: Run) -> None:
    run.start()
    run.writer.line(0, HOSTS[0], b"Loading checkpoint shards: 100%\n", T0_MS + run.now_ms)
    run.fail(0, "protocol_violation", "wrote a line that is no JSON", "idle")
    run.ended(0, signal="SIGKILL", expected=True)
    run.close(5, "stage 0 on alpha wrote a line that is no JSON")


def crashed(run: Run) -> None:
    run.start()
    run.stderr(0, "first\nsecond\nthird\nfourth\n")
    run.ended(0, code=9)
    run.close(5)


def op_refused(run: Run) -> None:
    run.start()
    run.generate()
    run.event(1, OpTraceback(op="forward_and_sample", rid="r1", traceback="Traceback\nIndexError"))
    run.sent(1, "forward_and_sample", 4, "internal")
    error = "stage 1 on beta refused forward_and_sample (internal)"
    run.close(1, error)
