"""The subcommand `orchestrator bench`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.benchmark.options import BenchOptions, add_options, read_options
from orchestrator.subcommand import Subcommand


def _bench(options: BenchOptions, command: Sequence[str]) -> int:
    from orchestrator.benchmark.bench import bench
    from orchestrator.command import finish

    return finish(lambda hold: bench(options, command, hold), as_json=options.json)


BENCH = Subcommand(
    name="bench",
    short="measure speed on your hosts, and where the time goes",
    about="""\
Start the stages as a run does and measure, on these hosts: the first token, prefill and decode,
what each stage does in the time of a token, how much of the memory's speed it uses, and several
requests at once. Every figure is a median with its spread; one request before them all is told
apart.""",
    usage="%(prog)s (--hosts FILE | --local N | --slurm) (--model-id ID | --stub) [options]",
    add_options=add_options,
    read_options=read_options,
    run=_bench,
)
