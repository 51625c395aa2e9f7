"""Pieces of text: together exactly the text of all ids, never half a character on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.detokenize import REPLACEMENT, Detokenizer

SPECIAL = 256  # An id without text.
CHARACTERS = st.text(alphabet="a é日🙂👩‍👩‍👧‍👦\ufffd", max_size=12)


def byte_level(ids: Sequence[int]) -> str:
    """Each id is one byte, as in GPT-2's tokenizer with an empty list of merges."""
    return bytes(i for i in ids if i != SPECIAL).decode("utf-8", "replace")


def stripping(ids: Sequence[int]) -> str:
    """As byte_level, but the first space of a text is stripped, as Llama's decoder does."""
    return byte_level(ids).removeprefix(" ")


def byte_fallback(ids: Sequence[int]) -> str:
    """A run of bytes that is not wholly UTF-8 becomes one U+FFFD a byte; ASCII ends a run."""
    text, run = "", b""
    for i in [*ids, 0x20]:
        if i >= 0x80 and i != SPECIAL:
            run += bytes([i])
            continue
        try:
            text += run.decode("utf-8")
        except UnicodeDecodeError:
            text += REPLACEMENT * len(run)
        run = b""
        text += "" if i == SPECIAL else chr(i)
    return text[:-1]


DECODERS = st.sampled_from([byte_level, stripping, byte_fallback])


def pieces_of(decoder: object, ids: Sequence[int], window_tokens: int) -> list[str]:
    async def detokenize(some: Sequence[int]) -> str:
        return decoder(some)  # type: ignore[operator]

    async def run() -> list[str]:
        detokenizer = Detokenizer(detokenize, window_tokens=window_tokens)
        pieces = [await detokenizer.push(i) for i in ids]
        pieces.append(await detokenizer.finish())
        assert detokenizer.text == "".join(pieces)
        return pieces

    return asyncio.run(run())


def ids_of(text: str, specials: Sequence[int]) -> list[int]:
    """The bytes of the text, with ids without text between characters."""
    ids: list[int] = []
    for i, character in enumerate(text):
        ids += [SPECIAL] * (i in specials)
        ids += character.encode("utf-8")
    return ids


@given(DECODERS, CHARACTERS, st.lists(st.integers(0, 12), max_size=4), st.integers(1, 20))
def test_whole_characters_come_out_exactly_and_at_once(
    decoder: object, text: str, specials: list[int], window_tokens: int
) -> None:
    ids = ids_of(text, specials)
    pieces = pieces_of(decoder, ids, window_tokens)
    assert "".join(pieces) == decoder(ids)  # type: ignore[operator]
    half = REPLACEMENT not in text and any(REPLACEMENT in piece for piece in pieces)
    assert not half


@given(
    st.sampled_from([byte_level, stripping]),
    st.lists(st.integers(0, 256), max_size=24),
    st.integers(1, 12),
)
def test_any_ids_at_all_come_out_exactly(
    decoder: object, ids: list[int], window_tokens: int
) -> None:
    assert "".join(pieces_of(decoder, ids, window_tokens)) == decoder(ids)  # type: ignore[operator]


@given(DECODERS, CHARACTERS.filter(lambda t: bool(t.encode("utf-8")[1:])), st.integers(1, 20))
def test_an_end_within_a_character_is_flushed_once(
    decoder: object, text: str, window_tokens: int
) -> None:
    ids = list(text.encode("utf-8"))[:-1]
    pieces = pieces_of(decoder, ids, window_tokens)
    if decoder is byte_fallback:
        # It takes back what was shown; what was shown stays, and no half character was shown.
        assert REPLACEMENT in text or not any(REPLACEMENT in p for p in pieces[:-1])
    else:
        assert "".join(pieces) == decoder(ids)  # type: ignore[operator]
