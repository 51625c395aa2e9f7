"""The bytes that each token id stands for, from the tokenizer's own decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from worker.backends.base import TokenBytes

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"  # What a decoder writes for a piece of a character.
ToBytes = Callable[[str], bytes]


def token_bytes(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> TokenBytes:
    """Return the bytes of each id below `vocab_size`, as they are after another token.

    Byte-level and SentencePiece vocabularies are told exactly; of another kind an id is what the
    decoder makes of it, and empty where that is no whole character. Added tokens, special ones
    too, are their own text. Ids that the tokenizer does not know are empty.
    """
    added = {int(i): str(token.content) for i, token in tokenizer.added_tokens_decoder.items()}
    known = [""] * vocab_size
    for token, i in tokenizer.get_vocab().items():
        if i < vocab_size:
            known[i] = token
    to_bytes = _to_bytes(_decoders(tokenizer))
    if to_bytes is None:
        pieces = [_decoded(tokenizer, i) if token else b"" for i, token in enumerate(known)]
    else:
        pieces = [to_bytes(token) for token in known]
    for i, text in added.items():
        if i < vocab_size:
            pieces[i] = text.encode("utf-8")
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    return TokenBytes(
        pieces=pieces,
        special_tokens=tuple(sorted(i for i in special if i < vocab_size)),
        chat_template=tool_template(tokenizer),
    )


def tool_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the chat template that is used where there are tools; None where there is none."""
    named = tokenizer.chat_template
    if isinstance(named, Mapping):
        named = named.get("tool_use") or named.get("default")
    return str(named) if named else None


def _decoders(tokenizer: PreTrainedTokenizerBase) -> Sequence[dict[str, Any]] | None:
    """Return the steps of a decoder of the library `tokenizers`; None where there is none."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return None
    state = json.loads(decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def _to_bytes(decoders: Sequence[dict[str, Any]] | None) -> ToBytes | None:
    """Return what a decoder makes of one token inside a text; None where that is not known."""
    if decoders is None:
        return None
    kinds = {step["type"] for step in decoders}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return _byte_level()
    replacements: dict[str, str] = {}
    for step in decoders:
        if step["type"] == "Metaspace":
            replacements[step["replacement"]] = " "
        elif step["type"] == "Replace" and "String" in step["pattern"]:
            replacements[step["pattern"]["String"]] = step["content"]
        elif step["type"] not in ("ByteFallback", "Fuse", "Strip"):
            return None  # `Strip` cuts at the ends of the whole text alone.
    if not replacements:
        return None
    return _pieces(replacements, falls_back="ByteFallback" in kinds)


def _byte_level() -> ToBytes:
    """Return the reverse of GPT-2's map of bytes to printable characters."""
    bytes_of = {character: bytes([byte]) for byte, character in _byte_characters()}

    def to_bytes(token: str) -> bytes:
        try:
            return b"".join([bytes_of[character] for character in token])
        except KeyError:
            return token.encode("utf-8")  # As the library's decoder does.

    return to_bytes


def _byte_characters() -> Iterator[tuple[int, str]]:
    """Give the character that stands for each byte.

    Source: `bytes_to_unicode` of GPT-2's encoder.py, openai/gpt-2.
    """
    next_character = 256
    for byte in range(256):
        if chr(byte).isprintable() and byte != ord(" "):
            yield byte, chr(byte)
        else:
            yield byte, chr(next_character)
            next_character += 1


def _pieces(replacements: Mapping[str, str], *, falls_back: bool) -> ToBytes:
    """Return what SentencePiece's pieces stand for: a mark for a space, a name for a byte."""

    def to_bytes(token: str) -> bytes:
        if falls_back and (byte := _BYTE_PIECE.fullmatch(token)) is not None:
            return bytes([int(byte[1], 16)])
        for mark, text in replacements.items():
            token = token.replace(mark, text)
        return token.encode("utf-8")

    return to_bytes


def _decoded(tokenizer: PreTrainedTokenizerBase, token: int) -> bytes:
    """Return what is added to a text by a token that comes a second time."""
    once, twice = (
        str(
            tokenizer.decode(
                [token] * times, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
        for times in (1, 2)
    )
    text = twice.removeprefix(once)
    return b"" if _REPLACEMENT in text else text.encode("utf-8")
