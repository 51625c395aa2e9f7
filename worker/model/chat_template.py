"""What a model's chat template takes, as its source tells."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.meta
from transformers import PreTrainedTokenizerBase

from worker.chat import check_unicode
from worker.protocol.schema import ErrorCode, ProtocolError

# A loop over a message's content: it takes a list of parts. A string needs none.
_LOOPS_OVER_PARTS = re.compile(r"\bfor\b[^%}]*\bin\b[^%}]*\bcontent\b")


def names_variable(template: str, name: str) -> bool:
    """Say whether a template's output may depend on a variable that it is given."""
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False)  # noqa: S701 - it is parsed alone
    try:
        return name in jinja2.meta.find_undeclared_variables(environment.parse(template))
    except jinja2.TemplateError:
        # Tags of transformers' own, as `generation`.
        return re.search(rf"\b{re.escape(name)}\b", template) is not None


def loops_over_parts(template: str) -> bool:
    """Say whether a template takes a message's content as a list of parts."""
    return _LOOPS_OVER_PARTS.search(template) is not None


def check_options(options: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse options that are no variables of a template, but settings or what it is given anyhow.

    Raises:
        ProtocolError: `bad_field`, naming the option.
    """
    reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters)
    reserved |= {"self", "messages", "conversations", *tokenizer.special_tokens_map}
    if taken := sorted(reserved & set(options)):
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"'template_options' has {taken[0]!r}, which is not for a request to say; give "
            "variables of the model's own template, as 'enable_thinking'",
        )
    check_unicode(options, "'template_options'")
