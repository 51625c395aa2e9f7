"""What people get to read on stderr."""

from __future__ import annotations

import io

import pytest

from orchestrator import cli
from orchestrator.stderr import write_line


def test_what_another_host_wrote_does_not_command_the_terminal() -> None:
    stream = io.StringIO()
    write_line(stream, "a\x1b[2J\x1b]0;b\x07\u202e\r\udc80 é\n\tc")
    assert stream.getvalue() == "a [2J ]0;b     é\n\tc\n"


def test_ctrl_c_while_python_imports_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_parser", interrupted)
    assert cli.main(["doctor"]) == 130
