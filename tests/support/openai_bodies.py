"""Bodies for OpenAI's interface as hypothesis makes them: right, nearly right, and neither."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"]), "content": _TEXT},
    optional={"name": _TEXT, "tool_call_id": _TEXT, "refusal": st.none()},
)
_COMMON: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(-1, 3),
    "top_p": st.floats(-1, 2) | st.booleans(),
    "top_k": st.integers(-2, 40),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0, 3),
    "presence_penalty": st.floats(-3, 3),
    "frequency_penalty": st.floats(-3, 3),
    "logit_bias": st.dictionaries(st.integers(-1, 40).map(str), st.integers(-120, 120), max_size=3),
    "n": st.integers(0, 3),
    "seed": st.integers(-(2**64), 2**64),
    "stop": _TEXT | st.lists(_TEXT, max_size=3),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "ignore_eos": st.booleans(),
    "max_tokens": st.integers(-1, 4),
    "user": _TEXT,
}
_CHAT: dict[str, st.SearchStrategy[Any]] = {
    **_COMMON,
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(-1, 21),
    "response_format": st.sampled_from(["text", "json_object", "x"]).map(lambda t: {"type": t}),
    "chat_template_kwargs": st.dictionaries(_TEXT, st.booleans(), max_size=2),
}
_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    **_COMMON,
    "logprobs": st.integers(-1, 21),
    "echo": st.booleans(),
}


def json_values() -> st.SearchStrategy[Any]:
    """Return any JSON."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )


def chat_bodies(model: str = "stub") -> st.SearchStrategy[dict[str, Any]]:
    """Return bodies of chats; some fields have the right kind of value, some any."""
    messages = st.lists(_MESSAGE, min_size=1, max_size=3)
    return _bodies({"model": st.just(model), "messages": messages}, _CHAT)


def text_bodies(model: str = "stub") -> st.SearchStrategy[dict[str, Any]]:
    """Return bodies of plain completions."""
    ids = st.lists(st.integers(0, 40), min_size=1, max_size=4)
    prompt = _TEXT | st.lists(_TEXT, max_size=2) | ids | st.lists(ids, max_size=2)
    return _bodies({"model": st.just(model), "prompt": prompt}, _PLAIN)


def _bodies(
    needed: dict[str, st.SearchStrategy[Any]], optional: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[dict[str, Any]]:
    near = st.fixed_dictionaries(needed, optional=optional)
    names = st.sampled_from([*needed, *optional, "foo"])
    # Mostly as it should be; now and then with one field of any value.
    odd = st.dictionaries(names, json_values(), min_size=1, max_size=1)
    return near | st.builds(lambda body, more: {**body, **more}, near, odd)
