"""The command line: flags, usage errors, help."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.cli import main
from orchestrator.run_options import RunOptions, add_options, read_options
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
        quantization=None,
        device=None,
        threads=None,
        max_context=None,
        prefill_chunk=256,
        trust_remote_code=False,
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
        ((*RUN, "--repetition-penalty", "0"), "'0' must be a finite number > 0"),
        ((*RUN, "--device", "gpu"), "device=gpu must be auto, cpu, cuda, cuda:N or mps"),
        ((*RUN, "--bundle-dir", "d", "--no-bundle"), "not allowed with argument"),
        ((*RUN, "--ssh-command", "ssh 'x"), "cannot be split into words"),
        (("run", "--local", "1000000", "--stub"), "is more than 1024 stages"),
        ((*RUN, "--temp", "1"), "unrecognized arguments: --temp"),
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


def test_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["run", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
        out = capsys.readouterr().out
        assert all(f"{code.value:>5}  " in out for code in ExitCode)
        assert max(map(len, out.splitlines())) <= 100


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"stageline {__version__}\n"
