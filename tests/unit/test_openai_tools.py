"""What the parameters of a tool may be."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.serve.errors import ApiError
from orchestrator.serve.openai.fields import Fields
from orchestrator.serve.openai.tools import read_tools


def tools(**function: Any) -> Any:
    listed = [{"type": "function", "function": {"name": "f", **function}}]
    return read_tools(Fields({"tools": listed}))


@pytest.mark.parametrize(
    "parameters",
    [{"type": "string"}, {"type": "array"}, {"type": ["object", "null"]}, {"type": {}}],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_parameters_that_are_no_object_are_refused_by_name(
    choice: str, parameters: dict[str, Any]
) -> None:
    function = {"name": "f", "parameters": parameters}
    listed = [{"type": "function", "function": function}]
    with pytest.raises(ApiError) as refused:
        read_tools(Fields({"tools": listed, "tool_choice": choice}))
    error, name = refused.value, "tools[0].function.parameters"
    assert (error.status, error.param, error.message) == (
        400,
        name,
        f'\'{name}\' is {parameters!r}, it must be an object schema ("type": "object")',
    )


@pytest.mark.parametrize(
    "function",
    [
        {},
        {"parameters": {}},
        {"parameters": {"type": "object"}},
        {"parameters": {"type": ["object"]}},
        {"parameters": {"properties": {"a": {"type": "string"}}}},
    ],
)
def test_an_object_is_meant_where_nothing_else_is_said(function: dict[str, Any]) -> None:
    assert [one["function"] for one in tools(**function).shown] == [{"name": "f", **function}]
