"""What every subcommand of the command line has: its help, its flags, and what it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orchestrator.spelling import closest

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

Options = TypeVar("Options")


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know by itself, so that the usage shown is the subcommand's own.

    argparse leaves that to the parser of the whole program, which shows its own usage.
    """

    def parse_known_args(  # type: ignore[override]  # its overloads, in one
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Return what was parsed; ends the program with a usage error where something is left."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {self._named(unknown)}")
        return parsed, unknown

    def _named(self, unknown: Sequence[str]) -> str:
        """Name the options among words that were left, or else all; what follows is their value."""
        options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        meant = self._meant(options[0].removeprefix("--")) if options else None
        hint = f"; did you mean --{meant}?" if meant else ""
        return " ".join(options or unknown) + hint

    def _meant(self, word: str) -> str | None:
        known = [name.removeprefix("--") for name in self._option_string_actions]
        begun = [name for name in known if name.startswith(word)]
        return begun[0] if len(begun) == 1 else closest(word, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand(Generic[Options]):
    """One subcommand, as the command line is told of it.

    Attributes:
        name: as it is typed.
        short: what the list of subcommands says of it.
        about: what its own help says first.
        usage: the first line of its help; None for one made from its flags.
        add_options: declares its flags.
        read_options: makes values of them; ends the program where they contradict each other.
        run: does it and returns the exit code; is given the words of the command line too. What
            it needs, it imports itself, so that --help and usage errors answer at once.
    """

    name: str
    short: str
    about: str
    usage: str | None = None
    add_options: Callable[[argparse.ArgumentParser], None]
    read_options: Callable[[argparse.ArgumentParser, argparse.Namespace], Options]
    run: Callable[[Options, Sequence[str]], int]

    def add_to(self, subcommands: SubParsers, exits: str) -> None:
        """Add its parser, which sets `handler`; `exits` explains the exit codes."""
        parser = add_parser(subcommands, self.name, self.short, self.about, exits, self.usage)
        self.add_options(parser)

        def handler(parsed: argparse.Namespace, command: Sequence[str]) -> int:
            return self.run(self.read_options(parser, parsed), command)

        parser.set_defaults(handler=handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcommandGroup:
    """A subcommand that has actions, which are subcommands of it; see `Subcommand`."""

    name: str
    short: str
    about: str
    actions: tuple[Subcommand[Any], ...]

    def add_to(self, subcommands: SubParsers, exits: str) -> None:
        """Add its parser and those of its actions; `exits` explains the exit codes of each."""
        parser = add_parser(subcommands, self.name, self.short, self.about, exits)
        actions = parser.add_subparsers(dest=f"{self.name}_action", required=True, metavar="ACTION")
        for action in self.actions:
            action.add_to(actions, exits)


def add_parser(
    subcommands: SubParsers, name: str, short: str, about: str, exits: str, usage: str | None = None
) -> argparse.ArgumentParser:
    """Add a parser whose texts are shown as they are."""
    return subcommands.add_parser(
        name,
        help=short,
        usage=usage,
        description=about,
        epilog=exits,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
