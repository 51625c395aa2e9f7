"""What is given by keyword has the type that is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest

from orchestrator.keywords import check


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (3, int),
        (3, float),
        (10**400, int),
        (None, int | None),
        ((), Sequence[int]),
        (range(3), Sequence[int]),
        ({5: 1}, Mapping[int, float]),
        (len, Callable[..., Any]),
        ("a", Literal["a", "b"]),
        ("a", Annotated[str, "a letter"]),
        ([{"a": [None]}], Sequence[Mapping[str, Any]]),
    ],
)
def test_a_value_of_the_type_passes(value: object, kind: Any) -> None:
    check("it", value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "mistake"),
    [
        (True, int, "TypeError: it=True must be an int"),
        (1.0, int | None, "TypeError: it=1.0 must be an int or None"),
        (True, float, "TypeError: it=True must be a finite number"),
        (10**400, float, "TypeError: it="),
        (float("-inf"), float, "ValueError: it=-inf must be a finite number"),
        ("ab", Sequence[str], "TypeError: it='ab' must be a sequence of texts"),
        (b"ab", Sequence[int], "TypeError: it=b'ab' must be a sequence of ints"),
        ({1}, Sequence[int], "TypeError: it={1} must be a sequence of ints"),
        ({5: True}, Mapping[int, float], "TypeError: it={5: True} must be a mapping of ints to"),
        (5, Callable[..., Any], "TypeError: it=5 must be a function"),
        ("c", Literal["a", "b"], "ValueError: it='c' must be one of 'a', 'b'"),
        (5, Literal["a", "b"] | None, "TypeError: it=5 must be one of 'a', 'b' or None"),
        (5, Annotated[str, "a letter"], "TypeError: it=5 must be a letter"),
        (list(range(999)), str, "TypeError: it=[0, 1, 2, 3, 4, 5, ...] must be a text"),
    ],
)
def test_any_other_is_told_in_one_sentence(value: object, kind: Any, mistake: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        check("it", value, kind)
    assert f"{raised.type.__name__}: {raised.value}".startswith(mistake)
