"""Calls as JSON objects with a name and arguments: alone, between markers, or in a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.grammar.grammars import json_rule
from orchestrator.tool_calls.call import Call, Function, call_of
from orchestrator.tool_calls.cursor import Cursor, NoCall
from orchestrator.tool_calls.syntax import Literal, Marks, choice


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>` and its kin; see `Syntax`.

    Attributes:
        opener: what stands before a call, or a list of calls; "" for a call with nothing before.
        other_opener: what may stand before it instead.
        closer: what stands after it, which may be left out; "" for nothing.
        arguments: name of the field with the arguments.
        is_list: whether all calls stand in one list.
        gap: white space between markers and JSON, as the template has it.
    """

    name: str
    opener: str
    other_opener: str = ""
    closer: str = ""
    arguments: str = "arguments"
    is_list: bool = False
    gap: str = ""

    @property
    def marks(self) -> Marks:
        """What shows where calls are."""
        openers = tuple(one for one in (self.opener, self.other_opener) if one)
        return Marks(
            name=self.name,
            openers=openers,
            edge_openers=() if self.opener else ("{",),
            separators="" if self.opener else ";",
            show_special=bool(openers),
        )

    def read(self, cursor: Cursor, opener: str, functions: Sequence[Function]) -> list[Call]:
        """Return the calls behind an opener."""
        if opener == "{":
            cursor.at -= 1
        cursor.space()
        value = cursor.json("{[")
        values = value if isinstance(value, list) else [value]
        calls = [call_of(one, self.arguments) for one in values]
        if not calls:
            raise NoCall
        if self.closer:
            cursor.closing(self.closer)
        return calls

    def forced(self, functions: Sequence[Function], literal: Literal, *, several: bool) -> str:
        """Return the grammar of an answer that calls."""
        gap = [json.dumps(self.gap)] if self.gap else []
        opening = [literal(self.opener), *gap] if self.opener else []
        closing = [*gap, literal(self.closer)] if self.closer else []
        if self.is_list:
            more = ' (", " body)*' if several else ""
            start = " ".join([*opening, '"["', f"body{more}", '"]"', *closing])
            lines = [f"start: {start}"]
        else:
            lines = [
                'start: call ("\\n" call)*' if several and self.opener else "start: call",
                f"call: {' '.join([*opening, 'body', *closing])}",
            ]
        lines.append(f"body: {choice(functions)}")
        for i, one in enumerate(functions):
            head = json.dumps(f'{{"name": {json.dumps(one.name)}, "{self.arguments}": ')
            lines.append(f'f{i}: {head} {json_rule(one.parameters)} "}}"')
        return "\n".join(lines)
