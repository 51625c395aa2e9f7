"""The options of the Python API are those of the command line."""

from __future__ import annotations

import argparse
from dataclasses import fields

from orchestrator.chat.options import add_options, read_options
from orchestrator.open_options import OpenOptions
from orchestrator.pipeline_options import PipelineOptions, pipeline_options
from orchestrator.plan_options import options_from


def test_the_types_name_every_option() -> None:
    named = {*OpenOptions.__annotations__, "model_id", "hosts", "local"}
    assert named == {field.name for field in fields(PipelineOptions)} - {"json"}


def test_the_defaults_are_those_of_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parsed = parser.parse_args(["--stub", "--local", "2"])
    assert pipeline_options({"stub": True, "local": 2}) == options_from(PipelineOptions, parsed)
    assert read_options(parser, parsed).system is None
