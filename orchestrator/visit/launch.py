"""The command that starts a program of ours on a host: a shell finds Python, Python reads it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from orchestrator.specs import StageSpec
from orchestrator.transport.base import Launch
from orchestrator.transport.interpreter import interpreter_words
from orchestrator.transport.ssh import for_login_shell

# No line break in here, which csh would read in spite of the quotes.
_SHELL = 'echo; echo "$1 shell"; shift; exec "$@"'
# Python 2 and anything later run this, to say which they are. A `json.py` in the current folder
# must not win over Python's own, so that folder leaves the path.
_BOOT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "sys.stdout.write('\\n%s python %d.%d.%d %s\\n' % ((sys.argv[1],) + tuple("
    "sys.version_info[:3]) + (sys.executable,))); "
    "sys.stdout.flush(); exec(eval(sys.stdin.readline()))"
)


def worker_python(spec: StageSpec) -> tuple[str, ...]:
    """Return the words that start the Python that a worker would get."""
    if spec.transport == "local":
        return (spec.python or sys.executable,)
    return interpreter_words(spec.python)


def visit_launch(spec: StageSpec, python: Sequence[str], nonce: str) -> Launch:
    """Return the command that starts Python where a worker of `spec` would run.

    Args:
        spec: where.
        python: words that start Python there; its arguments follow them.
        nonce: begins each line of ours.
    """
    settings = [f"{name}={value}" for name, value in spec.environment.items()]
    shell = ["env", *settings, "sh", "-c", _SHELL, "sh", nonce]
    words = [*shell, *python, "-c", _BOOT, nonce]
    if spec.ssh is not None:
        # As for workers: the shell stays behind the program, so that a signal is not ssh's 255.
        line = for_login_shell(f"{shlex.join(words)}; exit $?")
        return Launch(spec.host, spec.ssh.argv(line), "ssh")
    return Launch(spec.host, (*spec.command, *words), spec.transport)


def command_there(spec: StageSpec, words: Sequence[str]) -> str:
    """Return the line that a person types here to run a command where the worker would."""
    return line_there(spec, shlex.join(words))


def line_there(spec: StageSpec, line: str) -> str:
    """Return the line that a person types here to have a shell there run a line."""
    if spec.ssh is not None:
        return f"{spec.ssh.by_hand} {_quoted(line)}"
    if spec.command:
        return f"{shlex.join(spec.command)} sh -c {_quoted(line)}"
    return line


def _quoted(line: str) -> str:
    """Quote a line for a shell, as a person would."""
    if "'" in line and not set(line) & set('"$`\\!'):
        return f'"{line}"'
    return shlex.quote(line)
