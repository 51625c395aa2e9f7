"""`orchestrator chat` as a user sees it: at a terminal, and with pipes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cli import COMMAND, run_cli, start_cli, stub_answer
from tests.support.oracle import Oracle, Question
from tests.support.terminal import CTRL_C, CTRL_D, Terminal, at_terminal

# What an answer was begun and ended with stands there in the next turn too.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ENDLESS = ("--max-new-tokens", "10000000")


def stub(*words: str) -> tuple[str, ...]:
    return ("chat", "--stub", "--local", "2", *words)


@contextmanager
def chatting(tmp_path: Path, *words: str) -> Iterator[Terminal]:
    """Chat with stub stages, up to the first prompt."""
    bundles = ("--bundle-dir", str(tmp_path / "bundles"))
    with at_terminal((*COMMAND, *stub(*bundles, *words))) as terminal:
        terminal.wait_for("> ")
        yield terminal


def told_pids(terminal: Terminal, tmp_path: Path) -> dict[int, int]:
    """Return the pid of each stage, from the ready lines in the bundle."""
    (bundle,) = (tmp_path / "bundles").iterdir()
    records = [json.loads(line) for line in (bundle / "events.jsonl").read_text().splitlines()]
    lines = [record.get("line") for record in records]
    ready = [line for line in lines if isinstance(line, dict) and line.get("status") == "ready"]
    return {line["stage"]: line["pid"] for line in ready}


def stop_in_mid_answer(terminal: Terminal, question: str) -> str:
    """Ask what has no end, press Ctrl-C once there is some text, and return the summary."""
    terminal.type(f"{question}\n")
    terminal.wait_for(f"{question}\n")
    terminal.wait_for(" ")
    terminal.type(CTRL_C)
    terminal.wait_for(" token")
    return terminal.wait_for("> ")


def test_a_pipes_lines_are_turns_and_stdout_is_the_answers_alone() -> None:
    turns = ["what is one", "and then two\\\nthree", '"""\na block\nof lines\n"""']
    asked = ["what is one", "and then two\nthree", "a block\nof lines"]
    done = run_cli(*stub("--max-new-tokens", "5", "--no-bundle"), stdin="\n".join(turns))
    said: list[str] = []
    for question in asked:
        said.append(question)
        said.append(" ".join(map(str, stub_answer(" ".join(said), 2, 5))))
    assert (done.returncode, done.stdout.splitlines()) == (0, said[1::2])
    counts = re.findall(r"^5 tokens, .*prompt (\d+) tokens \(\d+ cached\)", done.stderr, re.M)
    assert [int(count) for count in counts] == [3, 3 + 5 + 4, 12 + 5 + 4]


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on_with_what_was_said(tmp_path: Path) -> None:
    with chatting(tmp_path, *ENDLESS) as terminal:
        assert "prompt 3 tokens" in (first := stop_in_mid_answer(terminal, "one two three"))
        assert first.splitlines()[0].endswith(", stopped")
        longer = stop_in_mid_answer(terminal, "four")
        terminal.type(f"/save {tmp_path / 'chat.json'}\n")
        terminal.wait_for("saved: ")
        terminal.wait_for("> ")
        terminal.type("/reset\n")
        terminal.wait_for("everything is forgotten")
        terminal.wait_for("> ")
        again = stop_in_mid_answer(terminal, "one two three")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    saved = json.loads((tmp_path / "chat.json").read_text())
    num_said = len(saved[1]["content"].split())
    assert [(one["role"], one.get("stopped")) for one in saved] == [
        ("user", None), ("assistant", True), ("user", None), ("assistant", True),
    ]  # fmt: skip
    assert f"prompt {3 + num_said + 1} tokens" in longer
    assert "prompt 3 tokens" in again


def test_a_file_is_written_over_only_when_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text("precious")
    with chatting(tmp_path, "--max-new-tokens", "3", "--system", "be brief") as terminal:
        terminal.type(f"/save {tmp_path / 'chat.json'}\n")
        terminal.wait_for("error: ")
        assert "is there already; /save! " in terminal.wait_for("> ")
        assert (tmp_path / "chat.json").read_text() == "precious"
        terminal.type(f"/save! {tmp_path / 'chat.json'}\n")
        terminal.wait_for("saved: ")
        terminal.wait_for("> ")
        terminal.type("/quit\n")
        assert terminal.end() == 0
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert saved == [{"role": "system", "content": "be brief"}]


def test_ctrl_c_twice_at_the_prompt_ends_the_chat(tmp_path: Path) -> None:
    with chatting(tmp_path) as terminal:
        terminal.type("half a question")
        terminal.wait_for("half a question")
        terminal.press_until(CTRL_C, "Ctrl-C again, or Ctrl-D, ends the chat")
        terminal.wait_for("> ")
        terminal.press_until(CTRL_C, "\n")
        assert terminal.end() == 128 + signal.SIGINT


def test_sigterm_in_mid_answer_ends_the_chat_in_order(tmp_path: Path) -> None:
    with chatting(tmp_path, *ENDLESS) as terminal:
        terminal.type("one\n")
        terminal.wait_for("one\n")
        terminal.wait_for(" ")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 128 + signal.SIGTERM
    (bundle,) = (tmp_path / "bundles").iterdir()
    exits = [json.loads(line) for line in (bundle / "exits.jsonl").read_text().splitlines()]
    assert [(one["exit_code"], one["expected"]) for one in exits] == [(0, True), (0, True)]


@pytest.mark.parametrize("question", ["", "one\n"])
def test_a_terminal_that_is_closed_ends_the_chat_as_sighup_does(
    tmp_path: Path, question: str
) -> None:
    with chatting(tmp_path, *ENDLESS) as terminal:
        terminal.type(question)
        terminal.wait_for(f"{question}")
        terminal.wait_for(" " if question else "")
        terminal.hang_up()
        assert terminal.process.wait(30) == 128 + signal.SIGHUP


def test_a_stage_that_is_lost_between_turns_is_a_note(tmp_path: Path) -> None:
    with chatting(tmp_path, "--max-new-tokens", "4") as terminal:
        os.kill(told_pids(terminal, tmp_path)[1], signal.SIGKILL)
        terminal.wait_for("note: stage 1 on local was killed by SIGKILL")
        terminal.wait_for("note: stage 1 on local serves again")
        terminal.type("one two\n")
        answer = " ".join(map(str, stub_answer("one two", 2, 4)))
        assert terminal.wait_for(f"{answer}\n").endswith(f"\n{answer}\n")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_a_stage_that_is_lost_for_good_ends_the_chat_with_a_sentence(tmp_path: Path) -> None:
    with chatting(tmp_path, "--restarts", "0", *ENDLESS) as terminal:
        terminal.type("one\n")
        terminal.wait_for("one\n")
        terminal.wait_for(" ")
        os.kill(told_pids(terminal, tmp_path)[1], signal.SIGKILL)
        terminal.wait_for("\nerror: stage 1 on local was killed by SIGKILL")
        assert terminal.end() == 5


def test_ctrl_c_ends_a_start(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("command=\"sh -c 'exec sleep 1000' --\"\n")
    words = ("chat", "--stub", "--hosts", str(tmp_path / "hosts.txt"), "--no-bundle")
    with at_terminal((*COMMAND, *words), {"TERM": "xterm"}) as terminal:
        terminal.wait_for("connecting")
        terminal.type(CTRL_C)
        assert terminal.end() == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--local", "1"), "give --model-id"),
        (("--hosts", "h", "--local", "1", "--stub"), "not allowed with argument"),
        (("--local", "1", "--stub", "--system", "a\udcff"), "--system is not UTF-8"),
    ],
)
def test_wrong_usage_ends_with_2(words: Sequence[str], message: str) -> None:
    done = run_cli("chat", *words)
    assert (done.returncode, done.stdout, message in done.stderr) == (2, "", True)


def test_nobody_who_reads_is_no_fault() -> None:
    process = start_cli(*stub("--no-bundle", *ENDLESS), stdin=-1)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"one two\n")
    assert process.stdout.read(4)
    process.stdout.close()
    process.stdin.close()
    assert process.wait(60) == 0
    assert process.stderr is not None
    process.stderr.close()


@pytest.mark.slow
def test_a_real_models_answer_is_that_of_transformers(tmp_path: Path) -> None:
    from tests.support.tiny import tiny_checkpoint
    from tests.support.tokenizers import byte_tokenizer

    folder = tiny_checkpoint(tmp_path / "model", "llama", vocab_size=300)
    byte_tokenizer(chat_template=TEMPLATE).save_pretrained(folder)
    question = Question(messages=[{"role": "user", "content": "hello"}], max_new_tokens=12)
    oracle = Oracle(folder, [question], 256)
    words = ("chat", "--model-id", str(folder), "--local", "1", "--threads", "1", "--no-bundle")
    done = run_cli(*words, "--max-new-tokens", "12", stdin="hello\nand then?\n", timeout_s=110)
    expected = oracle.answers()[0]
    oracle.close()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(expected.text)
    cached = [int(n) for n in re.findall(r"\((\d+) cached\)", done.stderr)]
    assert (cached[0], cached[1] >= len(expected.prompt_tokens)) == (0, True)
