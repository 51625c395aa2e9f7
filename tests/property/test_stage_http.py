"""The headers of stage-http: what is written is read, junk is a 400, positions follow the mask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from orchestrator.serve.errors import ApiError
from orchestrator.stage_http import headers as names
from orchestrator.stage_http.headers import Given, encode_ids, encode_mask, read_headers, shape_text
from orchestrator.stage_http.rows import rows_of

IDS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=40).map(tuple)
MASK = st.lists(st.sampled_from((0, 1)), min_size=1, max_size=40).map(bytes)
NAMES = st.sampled_from(
    (
        names.SHAPE,
        names.DTYPE,
        names.ATTN_MASK,
        names.POSITION_IDS,
        names.TOKEN_IDS,
        names.SESSION,
        names.POSITION,
    )
)
SHAPES = st.lists(st.integers(1, 10**9 - 1), min_size=2, max_size=7).map(lambda axes: (1, *axes))
# What h11 lets through: Latin-1 without control characters.
TEXTS = st.text(st.characters(codec="latin-1", exclude_categories=("Cc",)), max_size=60)
GIVEN = st.builds(
    Given,
    shape=st.none() | SHAPES,
    dtype=st.sampled_from((None, "bfloat16", "float32")),
    mask=st.none() | MASK,
    position_ids=st.none() | IDS,
    token_ids=st.none() | IDS,
    session=st.none() | st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    position=st.none() | st.integers(0, 2**31 - 1),
)


def written(given: Given) -> Headers:
    """Write headers as the documentation says."""
    texts = {
        names.SHAPE: given.shape and shape_text(given.shape),
        names.DTYPE: given.dtype,
        names.ATTN_MASK: given.mask and encode_mask(given.mask),
        names.POSITION_IDS: given.position_ids and encode_ids(given.position_ids),
        names.TOKEN_IDS: given.token_ids and encode_ids(given.token_ids),
        names.SESSION: given.session,
        names.POSITION: None if given.position is None else str(given.position),
    }
    return Headers({name: text for name, text in texts.items() if text is not None})


@given(GIVEN)
def test_what_is_written_is_read(given: Given) -> None:
    assert read_headers(written(given)) == given


@given(st.dictionaries(NAMES, TEXTS))
def test_junk_is_understood_or_refused_by_name(texts: dict[str, str]) -> None:
    try:
        read_headers(Headers(texts))
    except ApiError as error:
        assert (error.status, error.param in texts) == (400, True)


def test_a_header_that_is_given_twice_is_refused() -> None:
    raw = [(b"x-meshnet-position", b"1"), (b"x-meshnet-position", b"2")]
    with pytest.raises(ApiError, match="is given 2 times, it needs to be given once"):
        read_headers(Headers(raw=raw))


@given(st.lists(MASK, min_size=1, max_size=4))
def test_positions_count_the_tokens_before_whatever_the_messages(masks: list[bytes]) -> None:
    held, found, whole = None, [], b"".join(masks)
    for index, mask in enumerate(masks):
        position = sum(map(len, masks[:index]))
        rows = rows_of(Given(mask=mask, position=position, session="s"), len(mask), None, held)
        held = rows.whole_mask
        found += rows.position_ids
    assert found == [sum(whole[:i]) if is_token else 0 for i, is_token in enumerate(whole)]


@given(MASK, MASK)
def test_other_positions_than_those_computed_are_refused(mask: bytes, other: bytes) -> None:
    ids = tuple(range(len(other)))
    right = tuple(sum(mask[:i]) if is_token else 0 for i, is_token in enumerate(mask))
    try:
        rows_of(Given(mask=mask, position_ids=ids), len(mask), None, None)
    except ApiError as error:
        assert (error.param, ids != right) == (names.POSITION_IDS, True)
    else:
        assert ids == right
