"""The leak check of the test suite sees each kind of leak, and nothing where nothing leaks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from tests.support.leaks import Belongings, descendants_of_run, mark_run

WAIT_FOR_EOF = [sys.executable, "-c", "import sys; sys.stdin.read()"]
NO_GRACE_S = 0.05


def test_nothing_left_is_an_empty_list() -> None:
    before = Belongings.now()
    subprocess.run(WAIT_FOR_EOF, stdin=subprocess.DEVNULL, check=True)
    assert before.left_behind() == []


def test_a_running_child_and_its_pipe_are_named_and_the_child_ended() -> None:
    before = Belongings.now()
    with subprocess.Popen(WAIT_FOR_EOF, stdin=subprocess.PIPE) as child:
        left = before.left_behind(grace_s=NO_GRACE_S)
    assert [text.split(" (")[0].split(" ")[0] for text in left] == ["descriptor", "process"]
    assert str(child.pid) in left[1]


def test_a_running_thread_is_named() -> None:
    stop = threading.Event()
    before = Belongings.now()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    left = before.left_behind(grace_s=NO_GRACE_S)
    stop.set()
    thread.join()
    assert left == ["thread forgotten"]


def test_an_open_descriptor_is_named() -> None:
    before = Belongings.now()
    reading, writing = os.pipe()
    left = before.left_behind()
    os.close(reading)
    os.close(writing)
    assert [text.split(" (pipe:")[0] for text in left] == [
        f"descriptor {fd}" for fd in sorted((reading, writing), key=str)
    ]


def test_a_descendant_is_found_by_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELINE_TEST_RUN", "")  # restored afterwards; mark_run sets its own
    mark = mark_run()
    with subprocess.Popen(WAIT_FOR_EOF, stdin=subprocess.PIPE) as child:
        found = set(descendants_of_run(mark))
        child.communicate()
    assert (found, descendants_of_run(mark)) == ({child.pid}, {})
