"""Write the tables of protocol.md from the protocol's own classes.

``python tools/protocol_doc.py`` rewrites what stands between the markers;
``--check`` exits 1 when the file is not what would be written.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Run as a file, only tools/ would be importable.
sys.path.insert(0, str(ROOT))

from worker.options import parser  # noqa: E402
from worker.protocol.capabilities import Capability  # noqa: E402
from worker.protocol.codec import MAX_LINE_BYTES, PROTOCOL_VERSION  # noqa: E402
from worker.protocol.encodings import Encoding  # noqa: E402
from worker.protocol.errors import ErrorCode  # noqa: E402
from worker.protocol.events import EVENTS, Envelope  # noqa: E402
from worker.protocol.exits import ExitCode  # noqa: E402
from worker.protocol.ops import ANY_ROLE, OPS, Request  # noqa: E402
from worker.protocol.ready import Ready  # noqa: E402
from worker.protocol.schema import rules_of  # noqa: E402
from worker.protocol.stage import Role  # noqa: E402

DOCUMENT = ROOT / "protocol.md"
_SECTION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(text: str) -> str:
    """Return the document with every generated section as it should be.

    Raises:
        KeyError: a marker names no section.
    """
    return _SECTION.sub(lambda m: f"{m[1]}{SECTIONS[m[2]]().strip()}\n{m[3]}", text)


def limits() -> str:
    """The numbers of this version."""
    return f"Protocol version `{PROTOCOL_VERSION}`; the longest line is {MAX_LINE_BYTES} bytes."


def ops() -> str:
    """One row for each op."""
    rows: list[tuple[str, ...]] = []
    for name, request in OPS.items():
        fields = ", ".join(_marked(request) or ["–"])
        rows.append((f"`{name}`", _roles(request), fields, ", ".join(_marked(request.reply))))
    head = ("op", "served by", "request fields (*optional*)", "reply fields (*optional*)")
    return _table(head, rows)


def requests() -> str:
    """A chapter for each op: its fields and its reply's."""
    parts = []
    for name, request in OPS.items():
        parts.append(f"#### `{name}`\n\n{_summary(request)}\n")
        if own := _rows(request, skip=("request_id",)):
            parts.append(_table(_FIELD_HEAD, own))
        parts.append(f"Reply: {_lower_first(_summary(request.reply))}\n")
        parts.append(_table(_FIELD_HEAD, _rows(request.reply)))
    return "\n".join(parts)


def ready() -> str:
    """The fields of the ready line."""
    return _table(_FIELD_HEAD, _rows(Ready))


def events() -> str:
    """A row for each field of each event, and the envelope's."""
    parts = ["Added to every event:\n", _table(_FIELD_HEAD, _rows(Envelope))]
    for kind, event in EVENTS.items():
        parts.append(f"**`{kind}`** – {_summary(event)}\n")
        parts.append(_table(_FIELD_HEAD, _rows(event)))
    return "\n".join(parts)


def errors() -> str:
    """The codes of error replies."""
    return _table(("code", "meaning"), [(f"`{code}`", code.meaning) for code in ErrorCode])


def exits() -> str:
    """The exit codes."""
    return _table(("exit code", "meaning"), [(str(c.value), c.meaning) for c in ExitCode])


def options() -> str:
    """The worker's command line."""
    rows = []
    for action in parser()._actions:
        if action.dest in ("help", "version"):
            continue
        value = "" if action.nargs == 0 else f" {action.metavar or '|'.join(action.choices or ())}"
        rows.append((f"`{action.option_strings[0]}{value}`", action.help or ""))
    return _table(("option", "meaning (default)"), rows)


def capabilities() -> str:
    """The names in the ready line's `capabilities`."""
    return _table(("capability", "meaning"), [(f"`{c}`", c.meaning) for c in Capability])


def encodings() -> str:
    """The names in the ready line's `encodings`."""
    return _table(("encoding", "meaning"), [(f"`{c}`", c.meaning) for c in Encoding])


SECTIONS: dict[str, Callable[[], str]] = {
    section.__name__: section
    for section in (
        limits,
        options,
        ops,
        requests,
        ready,
        events,
        errors,
        exits,
        capabilities,
        encodings,
    )
}
_FIELD_HEAD = ("field", "must be", "default", "meaning")


def _rows(message: type[Any], skip: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    # A field that holds its default is left out of a line, so an object of defaults alone is {}.
    rows: list[tuple[str, ...]] = []
    for field, rule in rules_of(message):
        if field.name in skip:
            continue
        if field.default is dataclasses.MISSING:
            default = "required"
        elif field.default is None:
            default = "absent"
        else:
            value = rule.to_json(field.default)
            default = f"`{str(value).lower() if isinstance(value, bool) else value}`"
        rows.append((f"`{field.name}`", rule.expects, default, rule.doc))
    return rows


def _marked(message: type[Any]) -> list[str]:
    """Return the names of a message's fields, the optional ones in italics."""
    return [
        f"`{field.name}`" if field.default is dataclasses.MISSING else f"*{field.name}*"
        for field, _ in rules_of(message)
        if field.name != "request_id"
    ]


def _roles(request: type[Request[Any]]) -> str:
    return "all" if request.roles == ANY_ROLE else ", ".join(r for r in Role if r in request.roles)


def _summary(message: type[Any]) -> str:
    return " ".join((message.__doc__ or "").split())


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in cells)
    return "\n".join("| " + " | ".join(row) + " |" for row in escaped) + "\n"


def main() -> int:
    """Write or check the document."""
    parser = argparse.ArgumentParser(description="write the tables of protocol.md")
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if stale")
    is_check = parser.parse_args().check
    text = DOCUMENT.read_text(encoding="utf-8")
    wanted = render(text)
    if wanted == text:
        return 0
    if is_check:
        print("protocol.md does not match worker/protocol: run python tools/protocol_doc.py")
        return 1
    DOCUMENT.write_text(wanted, encoding="utf-8")
    print("protocol.md rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
