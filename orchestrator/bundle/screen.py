"""Where a report is printed: rich on a terminal, plain text elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under headings; a heading that starts with `>` is of a right-aligned column."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Screen(Protocol):
    """Takes a report piece by piece."""

    @property
    def width(self) -> int | None:
        """Characters in a line, None where there is no bound."""

    def heading(self, text: str) -> None:
        """Begin a section."""

    def line(self, text: str, style: str = "") -> None:
        """Print a paragraph; `style` is a rich style and may be ignored."""

    def whole(self, text: str) -> None:
        """Print a line that is to be copied: whatever its length, it is not broken."""

    def table(self, table: Table) -> None:
        """Print a table; nothing for one without rows."""


class PlainScreen:
    """Prints to any text stream; what its encoding lacks becomes `?`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def heading(self, text: str) -> None:
        """Begin a section."""
        self.line("")
        self.line(text)

    def line(self, text: str, style: str = "") -> None:
        """Print a line."""
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(_shown(text).encode(encoding, "replace").decode(encoding) + "\n")

    @property
    def width(self) -> int | None:
        """No bound."""
        return None

    def whole(self, text: str) -> None:
        """Print a line."""
        self.line(text)

    def table(self, table: Table) -> None:
        """Print aligned columns."""
        if not table.rows:
            return
        titles = tuple(heading.lstrip(">") for heading in table.headings)
        lines = (titles, *table.rows)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = [
                cell.rjust(width) if heading.startswith(">") else cell.ljust(width)
                for cell, width, heading in zip(line, widths, table.headings, strict=True)
            ]
            self.line(("  " + "  ".join(cells)).rstrip())


class RichScreen:
    """Prints to a terminal through rich; foreign text is never read as markup."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._console.print()
        self.line(text, "bold")

    def line(self, text: str, style: str = "") -> None:
        """Print a paragraph, wrapped to the terminal and indented as a whole."""
        from rich.padding import Padding
        from rich.text import Text

        indent = len(text) - len(text.lstrip())
        self._console.print(Padding(Text(_shown(text.strip()), style=style), (0, 0, 0, indent)))

    @property
    def width(self) -> int | None:
        """The terminal's."""
        return self._console.width

    def whole(self, text: str) -> None:
        """Print a line; the terminal goes on below where it is too long, and copies it whole."""
        from rich.text import Text

        self._console.print(Text(_shown(text)), soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table with rules."""
        from rich.table import Table as RichTable
        from rich.text import Text

        if not table.rows:
            return
        drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in table.headings:
            right = heading.startswith(">")
            drawn.add_column(Text(heading.lstrip(">")), justify="right" if right else "left")
        for row in table.rows:
            drawn.add_row(*(Text(_shown(cell)) for cell in row))
        self._console.print(drawn)


def _shown(text: str) -> str:
    """Return the text without what a terminal would obey: a host may be called anything."""
    return "".join(c if c.isprintable() else " " for c in text)


def screen_for(stream: TextIO) -> Screen:
    """Return the screen that suits the stream."""
    if not stream.isatty():
        return PlainScreen(stream)
    from rich.console import Console

    return RichScreen(Console(file=stream))
