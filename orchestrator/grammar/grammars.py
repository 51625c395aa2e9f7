"""What answers of one model can be held to."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from llguidance import LLMatcher

from orchestrator.grammar.compiled import CompiledGrammar, first_line
from orchestrator.grammar.finite import finite
from orchestrator.grammar.grammar import Grammar
from orchestrator.grammar.refused import GrammarRefused
from orchestrator.grammar.token_table import token_table
from orchestrator.grammar.trial import TRIAL_S, is_bounded
from orchestrator.vocabulary import Vocabulary

_KEPT_GRAMMARS = 64
_MAX_SCHEMA_CHARS = 256 * 1024
# Between the parts of JSON: nothing, a space, or a new line with its indentation. Any number of
# line feeds would let a small model emit nothing else for ever.
_WHITESPACE = r"[ ]?|\n[ ]{0,24}"
# Where the library says it found the mistake, in a text that the user has not written.
_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
# What it says in terms of its own options or addresses, and what that means here.
_PLAINER = (
    (
        re.compile(r"^oneOf constraints are not supported.*"),
        "'oneOf' needs schemas that plainly exclude each other, so use 'anyOf'",
    ),
    (
        re.compile(
            r"^circular references with sibling keys are not supported: json-schema:///(.*)"
        ),
        r"\1 refers to itself with more keys beside '$ref'",
    ),
)


class Grammars:
    """Compiles grammars for the tokens of one model, and keeps the newest ones.

    May be used from several threads. Making one, and compiling a large schema, takes up to a
    second: do it in a thread (`asyncio.to_thread`) where an event loop waits.

    Args:
        vocabulary: of the model.
        eos_token_ids: the tokens that end an answer. They are allowed exactly where the answer
            may end, and nothing else is where it must.
        most_kept: how many compiled grammars are kept, the newest.

    Raises:
        GrammarRefused: the model has no tokens with text, or none that ends an answer.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        eos_token_ids: Collection[int],
        *,
        most_kept: int = _KEPT_GRAMMARS,
    ) -> None:
        self._table = token_table(vocabulary, eos_token_ids)
        self._special = {
            vocabulary.pieces[one].decode(errors="replace"): one
            for one in vocabulary.special_tokens
            if one < len(vocabulary.pieces)
        }
        self._kept: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._most_kept = most_kept
        self._lock = threading.Lock()
        self._trying = threading.Lock()

    def json_object(self) -> Grammar:
        """Return the grammar of any JSON object.

        Raises:
            GrammarRefused: never for a usual vocabulary.
        """
        return self._compiled(f"start: {json_rule({'type': 'object'})}", "JSON", is_ours=True)

    def json_schema(self, schema: dict[str, Any]) -> Grammar:
        """Return the grammar of the JSON values that fit a schema.

        Properties come in the order that the schema names them in.

        Raises:
            GrammarRefused: it is no JSON schema, nothing fits it, or it uses what cannot be
                promised.
        """
        return self.lark(f"start: {json_rule(schema)}", "the JSON schema")

    def lark(self, text: str, named: str = "the grammar") -> Grammar:
        """Return the grammar that a text in llguidance's dialect of Lark describes.

        Args:
            text: the grammar; `start` is what the answer is.
            named: what it came from, for error texts.

        Raises:
            GrammarRefused: it is no such grammar, or too complex.
        """
        return self._compiled(text, named, is_ours=False)

    def _compiled(self, text: str, named: str, *, is_ours: bool) -> CompiledGrammar:
        with self._lock:
            if text in self._kept:
                self._kept.move_to_end(text)
                return self._kept[text]
        grammar = f'%llguidance {{"no_forcing": true}}\n{text}\n'
        if not is_ours:
            self._try(grammar, named)
        matcher = LLMatcher(self._table, grammar, log_level=0)
        if matcher.is_error():
            reason = _plain(_PLACE.sub("", first_line(matcher.get_error())))
            raise GrammarRefused(
                f"{named} cannot be held to: {reason}; use a simpler one, or ask for plain text"
            )
        compiled = CompiledGrammar(matcher)
        with self._lock:
            self._kept[text] = compiled
            while len(self._kept) > self._most_kept:
                self._kept.popitem(last=False)
        return compiled

    def _try(self, grammar: str, named: str) -> None:
        """Refuse what takes too long or too much memory to compile; one at a time is tried."""
        with self._trying:
            if not is_bounded(grammar):
                raise GrammarRefused(
                    f"{named} is too complex: it takes more than {TRIAL_S} s or 2 GiB to compile, "
                    "or has too many ways to begin; use a simpler one"
                )

    def literal(self, text: str) -> str:
        """Return the expression for a text in a rule, be it a special token of the model or not."""
        if (token_id := self._special.get(text)) is not None:
            return f"<[{token_id}]>"
        return json.dumps(text)


def _plain(reason: str) -> str:
    for pattern, words in _PLAINER:
        reason = pattern.sub(words, reason)
    return reason


def json_rule(schema: dict[str, Any]) -> str:
    """Return the expression for the JSON values that fit a schema, to stand in a rule.

    Raises:
        GrammarRefused: the schema is far too long, or only what never ends would fit it.
    """
    if not isinstance(schema, dict):
        raise GrammarRefused(f"the JSON schema is {schema!r:.80}, and it must be an object")
    if len(text := json.dumps(schema)) > _MAX_SCHEMA_CHARS:
        raise GrammarRefused(
            f"the JSON schema has {len(text)} characters, and at most {_MAX_SCHEMA_CHARS} are "
            "taken; send a shorter one"
        )
    ruled = {**finite(schema), "x-guidance": {"whitespace_pattern": _WHITESPACE}}
    return f"%json {json.dumps(ruled)}"
