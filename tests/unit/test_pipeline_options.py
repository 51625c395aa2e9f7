"""The options of the Python API are those of the command line, and are held to the same rules."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from orchestrator.chat.options import add_options, read_options
from orchestrator.hosts import HostsError
from orchestrator.open_options import OpenOptions
from orchestrator.open_options import read_options as read_keywords
from orchestrator.pipeline_options import PipelineOptions
from orchestrator.plan_options import options_from

_HOSTS = "the path of a hosts file or a sequence of its lines, as hosts=['local slots=2']"
_ANSWERS = "says how to answer: give it to generate, chat or complete, not to open"


def test_the_types_name_every_option() -> None:
    named = {*OpenOptions.__annotations__, "model_id", "hosts", "local"}
    assert named == {field.name for field in fields(PipelineOptions)} - {"json"}


def test_the_defaults_are_those_of_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parsed = parser.parse_args(["--stub", "--local", "2"])
    assert read_keywords({"stub": True, "local": 2}) == options_from(PipelineOptions, parsed)
    assert read_options(parser, parsed).system is None


def test_values_become_what_their_flags_make_of_them() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    line = (
        "--model-id m/x --hosts h.txt --bundle-dir b --start-timeout-s 5 --forward A --restarts 0"
    )
    parsed = parser.parse_args(line.split())
    given: dict[str, Any] = {
        "model_id": Path("m/x"),
        "hosts": Path("h.txt"),
        "bundle_dir": "b",
        "start_timeout_s": 5,
        "forward": ["A"],
        "restarts": 0,
    }
    read = read_keywords(given)
    typed = options_from(PipelineOptions, parsed)
    assert {field.name: getattr(read, field.name) for field in fields(read)} == {
        **{field.name: getattr(typed, field.name) for field in fields(typed)},
        "forward": ("A",),
    }


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"links": "chains"}, ValueError, "links='chains' must be one of 'star', 'chain', 'auto'"),
        (
            {"speculate": "on"},
            ValueError,
            "speculate='on' must be one of 'auto', 'off', 'ngram', 'draft'",
        ),
        ({"restarts": "3"}, TypeError, "restarts='3' must be an int"),
        ({"restarts": 1.5}, TypeError, "restarts=1.5 must be an int"),
        ({"restarts": -1}, ValueError, "restarts=-1 must be a whole number, at least 0"),
        ({"local": 0}, ValueError, "local=0 must be a whole number, at least 1"),
        ({"local": True}, TypeError, "local=True must be an int or None"),
        ({"local": 9999}, ValueError, "local=9999 is more than 1024 stages"),
        ({"no_bundle": "yes"}, TypeError, "no_bundle='yes' must be True or False"),
        ({"model_id": 5}, TypeError, "model_id=5 must be a text, a path or None"),
        ({"hosts": 5}, TypeError, f"hosts=5 must be {_HOSTS}"),
        ({"hosts": ["local", 5]}, TypeError, f"hosts=['local', 5] must be {_HOSTS}"),
        (
            {"hosts": "local"},
            HostsError,
            (
                "local: cannot read the hosts file: there is none; hosts takes a path or a "
                "sequence of lines: hosts=['local']"
            ),
        ),
        ({"slurm": 5}, TypeError, "slurm=5 must be a text or None"),
        ({"device": "gpu"}, ValueError, "device='gpu' must be auto, cpu, cuda, cuda:N or mps"),
        ({"cache_dir": ""}, ValueError, "cache_dir='' is empty; give a folder"),
        (
            {"start_timeout_s": float("nan")},
            ValueError,
            "start_timeout_s=nan must be a finite number or None",
        ),
        ({"forward": "A"}, TypeError, "forward='A' must be a sequence of texts or None"),
        (
            {"forward": ["A", "b-c"]},
            ValueError,
            "forward='b-c' is not a variable's name; give it as env.b-c= in the hosts file",
        ),
        ({"modelid": "a"}, TypeError, "there is no option 'modelid'; did you mean model_id?"),
        ({"sockets": 1}, TypeError, "there is no option 'sockets'; see docs/api.md"),
        ({"temperature": 0.5}, TypeError, f"temperature {_ANSWERS}"),
        (
            {"system": "x"},
            TypeError,
            "system is a message: give chat one with the role 'system' before the others",
        ),
        (
            {"hosts": ["local"], "local": 1},
            ValueError,
            "hosts and local are both given; give one of them",
        ),
        (
            {"bundle_dir": "b", "no_bundle": True},
            ValueError,
            "bundle_dir and no_bundle are both given; give one of them",
        ),
        (
            {"speculate": "draft"},
            ValueError,
            "speculate='draft' needs draft_model_id=… (a folder or a hub id)",
        ),
    ],
)
def test_what_cannot_be_is_told_with_name_value_and_need(
    given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        read_keywords({"stub": True, **given})
