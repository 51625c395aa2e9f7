"""Mistral's calls, of both kinds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.grammar.grammars import json_rule
from orchestrator.tool_calls.call import Call, Function, made_call
from orchestrator.tool_calls.cursor import Cursor
from orchestrator.tool_calls.json_calls import JsonCalls
from orchestrator.tool_calls.syntax import Literal, Marks, choice

_OPENER, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_LIST = JsonCalls(name="mistral", opener=_OPENER, is_list=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralCalls:
    """`[TOOL_CALLS][{"name": …, "arguments": {…}}]` or `[TOOL_CALLS]name[ARGS]{…}`; see `Syntax`.

    Attributes:
        is_named: whether the template writes the second kind; both are read.
    """

    is_named: bool

    @property
    def marks(self) -> Marks:
        """What shows where calls are."""
        # Its templates refuse ids of another form when the conversation goes on.
        return Marks(name="mistral", openers=(_OPENER,), id_prefix="", id_chars=9)

    def read(self, cursor: Cursor, opener: str, functions: Sequence[Function]) -> list[Call]:
        """Return the calls behind an opener."""
        cursor.space()
        if cursor.has("["):
            cursor.at -= 1
            return _LIST.read(cursor, opener, functions)
        name = cursor.word(_NAME)
        if cursor.has(_CALL_ID):
            cursor.word(_NAME)
        cursor.has(_ARGS)
        cursor.space()
        return [made_call(name, cursor.json("{"))]

    def forced(self, functions: Sequence[Function], literal: Literal, *, several: bool) -> str:
        """Return the grammar of an answer that calls."""
        if not self.is_named:
            return _LIST.forced(functions, literal, several=several)
        lines = ["start: call+" if several else "start: call"]
        lines.append(f"call: {choice(functions)}")
        for i, one in enumerate(functions):
            parts = [literal(_OPENER), json.dumps(one.name), literal(_ARGS)]
            lines.append(f"f{i}: {' '.join(parts)} {json_rule(one.parameters)}")
        return "\n".join(lines)
