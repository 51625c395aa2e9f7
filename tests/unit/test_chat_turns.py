"""What is typed becomes turns; what was said becomes messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.chat.talk import Talk
from orchestrator.chat.turns import NoText, Turn, read_turn


def typed(*lines: str) -> Callable[[str], str]:
    left = iter(lines)

    def read_line(prompt: str) -> str:
        for line in left:
            return line
        raise EOFError

    return read_line


@pytest.mark.parametrize(
    ("lines", "turn"),
    [
        (("hello",), Turn("hello")),
        (("a \\", "b\\", "c"), Turn("a \nb\nc")),
        (("a\\",), Turn("a")),
        (('"""', "x", "", 'y"""'), Turn("x\n\ny")),
        (('"""one line"""',), Turn("one line")),
        (('"""', "never closed"), Turn("never closed")),
        (('"""', "/reset", '"""'), Turn("/reset")),
        (("/save! a b.json ",), Turn("a b.json", "save!")),
        (("/reset",), Turn("", "reset")),
        (("/system be brief\\", "and kind"), Turn("be brief\nand kind", "system")),
        (("//etc/hosts?",), Turn("/etc/hosts?")),
        (("",), Turn("")),
    ],
)
def test_lines_become_a_turn(lines: tuple[str, ...], turn: Turn) -> None:
    assert read_turn(typed(*lines)) == turn


def test_the_end_of_the_lines_is_the_end() -> None:
    with pytest.raises(EOFError):
        read_turn(typed())


def test_bytes_that_are_no_text_are_told() -> None:
    with pytest.raises(NoText, match="not UTF-8 at character 3"):
        read_turn(typed("ab\udcff"))


def test_the_template_gets_roles_and_contents_alone() -> None:
    talk = Talk("be brief")
    talk.add("a", "b", stopped=True)
    assert talk.to_ask("c") == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    )
    assert (talk.undo(), talk.undo(), talk.messages) == (True, False, [])
