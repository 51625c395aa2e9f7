"""The command line: flags, usage errors, help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.cli import main
from orchestrator.run_options import RunOptions, add_options, read_options
from tests.support.cli import ROOT
from worker.protocol.exits import ExitCode

RUN = ("run", "--local", "2", "--stub")


def options_of(*words: str) -> RunOptions:
    import argparse

    parser = argparse.ArgumentParser()
    add_options(parser)
    return read_options(parser, parser.parse_args(words))


def test_the_defaults_are_greedy_and_plain() -> None:
    assert options_of("--hosts", "h.txt", "--model-id", "m") == RunOptions(
        hosts=Path("h.txt"),
        local=None,
        model_id="m",
        revision=None,
        prompt=None,
        prompt_file=None,
        raw=False,
        system=None,
        max_new_tokens=None,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        seed=None,
        stop=(),
        ignore_eos=False,
        json=False,
        stub=False,
        restarts=3,
        wire_encoding="auto",
        links="star",
        quantization=None,
        engine=None,
        device=None,
        threads=None,
        max_context=None,
        prefill_chunk=256,
        trust_remote_code=False,
        speculate="auto",
        draft_model_id=None,
        draft_quantization=None,
        draft_device=None,
        prefix_reuse="off",
        bundle_dir=None,
        no_bundle=False,
        accept_new=False,
        ssh_command="ssh",
        start_timeout_s=None,
        cache_dir=None,
        whole_files=False,
        fetch_connections=None,
        even_split=False,
    )


def test_stop_may_be_given_several_times() -> None:
    assert options_of("--local", "1", "--stub", "--stop", "a", "--stop", "é ").stop == ("a", "é ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--stub"), "one of the arguments --hosts --slurm --local is required"),
        (("run", "--local", "2"), "give --model-id"),
        ((*RUN, "--hosts", "h"), "not allowed with argument"),
        ((*RUN, "--raw", "--system", "x"), "--system needs the chat template"),
        ((*RUN, "--prompt", "x", "--prompt-file", "-"), "not allowed with argument"),
        ((*RUN, "--stop", ""), "an empty text would end the answer at once"),
        ((*RUN, "--max-new-tokens", "0"), "'0' must be a whole number, at least 1"),
        ((*RUN, "--top-k", "-1"), "'-1' must be a whole number, at least 0"),
        ((*RUN, "--temperature", "-1"), "'-1' must be a finite number >= 0"),
        ((*RUN, "--temperature", "nan"), "'nan' must be a finite number >= 0"),
        ((*RUN, "--top-p", "1.5"), "'1.5' must be a number between 0 and 1"),
        ((*RUN, "--min-p", "x"), "'x' must be a number between 0 and 1"),
        ((*RUN, "--speculate", "draft"), "--speculate draft needs --draft-model-id"),
        (
            (*RUN, "--speculate", "off", "--draft-model-id", "m"),
            "--draft-model-id is of no use with --speculate off",
        ),
        (
            (*RUN, "--draft-model-id", "m"),
            "--draft-model-id is of no use with --stub; give one of them",
        ),
        (
            ("run", "--local", "1", "--model-id", "m", "--draft-quantization", "int8"),
            "--draft-quantization int8 needs --draft-model-id",
        ),
        (
            ("run", "--local", "1", "--model-id", "m", "--draft-device", "cpu"),
            "--draft-device cpu needs --draft-model-id",
        ),
        ((*RUN, "--repetition-penalty", "0"), "'0' must be a finite number > 0"),
        ((*RUN, "--device", "gpu"), "device=gpu must be auto, cpu, cuda, cuda:N or mps"),
        ((*RUN, "--bundle-dir", "d", "--no-bundle"), "not allowed with argument"),
        ((*RUN, "--ssh-command", "ssh 'x"), "cannot be split into words"),
        (("run", "--local", "1000000", "--stub"), "is more than 1024 stages"),
        (
            ("setup", "--hosts", "h", "--torch", "foo"),
            "'foo' is no build of torch; give cpu, cu130",
        ),
        (("setup", "--slurm"), "the following arguments are required: --hosts"),
        ((*RUN, "--temp", "1"), "unrecognized arguments: --temp; did you mean --temperature?"),
        ((*RUN, "--promt=hi"), "unrecognized arguments: --promt; did you mean --prompt?"),
        ((*RUN, "--max-tokens", "4"), "--max-tokens; did you mean --max-new-tokens?"),
        ((*RUN, "--zzz", "4"), "unrecognized arguments: --zzz"),
        ((*RUN, "hi"), "unrecognized arguments: hi"),
        ((), "COMMAND"),
    ],
)
def test_wrong_usage_ends_with_2_and_the_reason(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    assert message in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("serve", "--local", "1", "--prot", "1"), "serve"),
        (("stage-http", "--shard-start=0", "--shard-end=1", "--port=0", "--x"), "stage-http"),
        (("cache", "ls", "--x"), "cache ls"),
        (("bundle", "show", "--x"), "bundle show"),
    ],
)
def test_wrong_usage_of_a_subcommand_shows_its_own_name_and_usage(
    words: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    first, *_, last = capsys.readouterr().err.splitlines()
    sentence = last.partition(": error: unrecognized arguments: ")[0]
    assert (first.startswith(f"usage: orchestrator {name} "), sentence) == (
        True,
        f"orchestrator {name}",
    )


def test_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["run", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
        out = capsys.readouterr().out
        assert all(f"{code.value:>5}  " in out for code in ExitCode)
        assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("plan", (0, 1, 2, 3, 4, 5, 130)),
        ("cache", (0, 1, 2, 3, 5, 130)),
        ("doctor", (0, 1, 2, 3, 5, 130)),
        ("setup", (0, 1, 2, 5, 130)),
    ],
)
def test_a_commands_help_names_the_codes_that_it_ends_with(
    command: str, codes: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    listed = capsys.readouterr().out.partition("exit codes:\n")[2]
    found = tuple(int(line[:5]) for line in listed.splitlines() if line[:5].strip())
    assert (found, "worker:" in listed) == (codes, False)


def test_a_ctrl_c_while_python_imports_ends_it_silently_with_130() -> None:
    code = """
import sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == "orchestrator.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
from orchestrator.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"stageline {__version__}\n"
