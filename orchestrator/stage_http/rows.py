"""Where the rows of a message stand, and that what the client says of them is what is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.stage_http.headers import ATTN_MASK, POSITION_IDS, TOKEN_IDS, Given, bad_header


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one message.

    Attributes:
        count: how many.
        position: absolute index of the first.
        mask: uint8 [1, count] of the message, where one of its rows is padded; None: none is.
        whole_mask: the same of the session up to and with the message.
        position_ids: int64 [1, count], as the stage counts them: tokens that are not padded, from
            0; padded rows have 0.
        token_ids: int64 [1, count], where they are known.
    """

    count: int
    position: int
    mask: bytes | None
    whole_mask: bytes | None
    position_ids: tuple[int, ...]
    token_ids: tuple[int, ...] | None


def rows_of(
    given: Given, count: int, tokens: Sequence[int] | None, held_mask: bytes | None
) -> Rows:
    """Return the rows of a message, its headers checked against what the stage computes.

    Args:
        given: the headers.
        count: rows of the message.
        tokens: its token ids on the first stage; elsewhere they may come in a header.
        held_mask: mask of the session before the message, where a position of it is padded.

    Raises:
        ApiError: 400: a header does not fit.
    """
    position = given.position or 0
    if given.mask is not None and len(given.mask) != count:
        raise bad_header(
            ATTN_MASK,
            f"holds {len(given.mask)} bytes, it needs one for each of the {count} rows of this "
            "message",
        )
    mask = given.mask if given.mask is not None and 0 in given.mask else None
    before = (held_mask or b"")[:position].ljust(position, b"\1")
    whole = before + (mask or b"\1" * count)
    known = tuple(tokens) if tokens is not None else given.token_ids
    if given.token_ids is not None and given.token_ids != known:
        raise bad_header(TOKEN_IDS, "differs from the tokens of the body: leave it away")
    if known is not None and len(known) != count:
        raise bad_header(
            TOKEN_IDS, f"holds {len(known)} ids, it needs one for each of {count} rows"
        )
    ids = _position_ids(whole, position)
    if given.position_ids is not None and given.position_ids != ids:
        raise bad_header(POSITION_IDS, _difference(given.position_ids, ids))
    return Rows(
        count=count,
        position=position,
        mask=mask,
        whole_mask=whole if 0 in whole else None,
        position_ids=ids,
        token_ids=known,
    )


def _position_ids(whole: bytes, position: int) -> tuple[int, ...]:
    seen = whole.count(1, 0, position)
    ids = []
    for is_token in whole[position:]:
        ids.append(seen if is_token else 0)
        seen += is_token
    return tuple(ids)


def _difference(given: Sequence[int], computed: Sequence[int]) -> str:
    if len(given) != len(computed):
        return f"holds {len(given)} ids, it needs one for each of {len(computed)} rows"
    row = next(i for i, (a, b) in enumerate(zip(given, computed, strict=True)) if a != b)
    return (
        f"has {given[row]} at row {row}, this stage computes with {computed[row]} there, which "
        "follows from the position and the attention mask: send that, or leave the header away"
    )
