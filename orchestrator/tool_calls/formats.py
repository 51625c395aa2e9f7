"""Which format a model's chat template has for calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.grammar.grammar import Grammar
from orchestrator.grammar.grammars import Grammars
from orchestrator.grammar.refused import GrammarRefused
from orchestrator.tool_calls.call import functions_of, is_object_schema
from orchestrator.tool_calls.deepseek import CALL_BEGIN, DeepSeekCalls
from orchestrator.tool_calls.json_calls import JsonCalls
from orchestrator.tool_calls.mistral import MistralCalls
from orchestrator.tool_calls.qwen_coder import QwenCoderCalls
from orchestrator.tool_calls.reader import ToolReader
from orchestrator.tool_calls.syntax import Syntax


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How one model calls tools.

    Attributes:
        syntax: the format itself.
    """

    syntax: Syntax

    @property
    def name(self) -> str:
        """The name of the format."""
        return self.syntax.marks.name

    @property
    def show_special(self) -> bool:
        """Whether a reader needs the text with special tokens in it."""
        return self.syntax.marks.show_special

    def reader(self, tools: Sequence[Mapping[str, Any]] = ()) -> ToolReader:
        """Return a reader for one answer.

        Args:
            tools: that the model was told of, as OpenAI's interface has them.
        """
        return ToolReader(self.syntax, functions_of(tools))

    def grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        tool_choice: str | Mapping[str, Any],
        grammars: Grammars,
        *,
        parallel: bool = True,
    ) -> Grammar | None:
        """Return what an answer must be; None where it is free.

        Args:
            tools: that the model is told of, as OpenAI's interface has them.
            tool_choice: "required", or `{"type": "function", "function": {"name": …}}`, for an
                answer that calls that function once; anything else leaves the answer free.
            grammars: of the model.
            parallel: whether a required call may be several.

        Raises:
            GrammarRefused: no tool has that name, or its parameters cannot be held to.
        """
        functions = functions_of(tools)
        if isinstance(tool_choice, Mapping):
            named, parallel = tool_choice["function"]["name"], False
            functions = [one for one in functions if one.name == named]
        elif tool_choice != "required":
            return None
        if not functions:
            raise GrammarRefused("a call is asked for, but there is no such tool; name one")
        for one in functions:
            if not is_object_schema(one.parameters):
                raise GrammarRefused(
                    f"the parameters of '{one.name}' are {one.parameters!r:.80}, they must be an "
                    'object schema; give them "type": "object"'
                )
        text = self.syntax.forced(functions, grammars.literal, several=parallel)
        return grammars.lark(text, "a tool's parameters")


def tool_format_of(chat_template: str | None) -> ToolFormat | None:
    """Return how a model calls tools; None where its template has none, or in an unknown way.

    Args:
        chat_template: source of the chat template.
    """
    template = chat_template or ""
    syntax = _syntax_of(template) if "tools" in template else None
    return None if syntax is None else ToolFormat(syntax)


def _syntax_of(template: str) -> Syntax | None:
    """Return the syntax whose markers a template has; the more telling markers come first."""
    if "<function=" in template and "<parameter=" in template:
        return QwenCoderCalls()
    if "[TOOL_CALLS]" in template:
        return MistralCalls(is_named="[ARGS]" in template)
    if CALL_BEGIN in template:
        return DeepSeekCalls(is_fenced="```json" in template)
    if "<|tool_call|>" in template:
        closer = "<|/tool_call|>" if "<|/tool_call|>" in template else ""
        return JsonCalls(name="tool-call-list", opener="<|tool_call|>", closer=closer, is_list=True)
    if "<tool_call>" in template:
        return JsonCalls(name="hermes", opener="<tool_call>", closer="</tool_call>", gap="\n")
    if '"parameters": dictionary' in template or '"parameters": ' in template:
        tag = "<|python_tag|>" if "<|python_tag|>" in template else ""
        return JsonCalls(name="llama", opener="", other_opener=tag, arguments="parameters")
    return None
