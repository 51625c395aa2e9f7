"""DeepSeek's calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.grammar.grammars import json_rule
from orchestrator.tool_calls.call import Call, Function, made_call
from orchestrator.tool_calls.cursor import Cursor, NoCall
from orchestrator.tool_calls.syntax import Literal, Marks, choice

CALL_BEGIN = "<\uff5ctool\u2581call\u2581begin\uff5c>"
_CALL_END = "<\uff5ctool\u2581call\u2581end\uff5c>"
_CALLS_BEGIN = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
_CALLS_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_FENCE_BEGIN, _FENCE_END = "```json\n", "\n```"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekCalls:
    """`…call▁begin…function…sep…name`, the arguments in a fence, `…call▁end…`; see `Syntax`.

    Attributes:
        is_fenced: whether the template writes that (V3, R1), and not only `name…sep…{…}` (V3.1);
            both are read.
    """

    is_fenced: bool

    @property
    def marks(self) -> Marks:
        """What shows where calls are."""
        return Marks(
            name="deepseek",
            openers=(CALL_BEGIN,),
            silent=(_CALLS_BEGIN, _CALLS_END),
            closers="}>`",
            takes_text=True,
        )

    def read(self, cursor: Cursor, opener: str, functions: Sequence[Function]) -> list[Call]:
        """Return the call behind an opener."""
        name = cursor.until(_SEPARATOR).strip()
        cursor.space()
        if not cursor.has("{"):
            # The first word was the kind of call.
            if name != "function":
                raise NoCall
            name = cursor.until("\n").strip()
            cursor.expect(_FENCE_BEGIN)
            cursor.space()
            arguments = cursor.json("{")
            cursor.closing("```")
        else:
            cursor.at -= 1
            arguments = cursor.json("{")
        cursor.closing(_CALL_END)
        return [made_call(name, arguments)]

    def forced(self, functions: Sequence[Function], literal: Literal, *, several: bool) -> str:
        """Return the grammar of an answer that calls."""
        begin, end, separator = map(literal, (CALL_BEGIN, _CALL_END, _SEPARATOR))
        more = ' ("\\n" call)*' if several and self.is_fenced else " call*" if several else ""
        lines = [
            f"start: {literal(_CALLS_BEGIN)} call{more} {literal(_CALLS_END)}",
            f"call: {begin} body {end}",
            f"body: {choice(functions)}",
        ]
        for i, one in enumerate(functions):
            arguments = json_rule(one.parameters)
            if self.is_fenced:
                head = json.dumps(f"{one.name}\n{_FENCE_BEGIN}")
                rule = f'"function" {separator} {head} {arguments} {json.dumps(_FENCE_END)}'
            else:
                rule = f"{json.dumps(one.name)} {separator} {arguments}"
            lines.append(f"f{i}: {rule}")
        return "\n".join(lines)
