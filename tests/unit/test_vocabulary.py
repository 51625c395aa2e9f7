"""The bytes of the tokens of a text, joined, are the text."""

from __future__ import annotations

import base64

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from orchestrator.vocabulary import Vocabulary
from tests.support.tokenizers import CHATML, SPECIAL, byte_tokenizer
from worker.backends.base import TokenBytes
from worker.model.vocabulary import token_bytes
from worker.protocol.ops import VocabularyReply
from worker.protocol.schema import ProtocolError

TEXTS = (
    "",
    "a b  c\n\t",
    " lead",
    "né 雪 👨‍👩‍👧‍👦",
    '{"k": [1, null]}',
    "\u00a0\u0000x",
    "▁<0x41>",
)


def byte_pieces() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Return a tokenizer with the steps of a Llama 2, over a handful of pieces."""
    pieces = ["<unk>", "<s>", "</s>", *byte_pieces(), "▁", "a", "b", "x", "▁a", "▁b", "né"]
    scores = {piece: i for i, piece in enumerate(pieces)}
    backend = Tokenizer(
        models.BPE(
            vocab=scores,
            merges=[("▁", "a"), ("▁", "b")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def wordpiece() -> PreTrainedTokenizerFast:
    words = ["[UNK]", "[CLS]", "play", "##ing", "the", "."]
    backend = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]")


def joined(known: TokenBytes, tokenizer: PreTrainedTokenizerFast, text: str) -> bytes:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    return b"".join(known.pieces[i] for i in ids)


def test_byte_level_tokens_joined_are_the_text() -> None:
    tokenizer = byte_tokenizer(chat_template=CHATML)
    known = token_bytes(tokenizer, len(tokenizer))
    assert [joined(known, tokenizer, text) for text in TEXTS] == [t.encode() for t in TEXTS]
    assert sorted(known.pieces[len(SPECIAL) :]) == [bytes([byte]) for byte in range(256)]
    assert known.special_tokens == tuple(range(len(SPECIAL)))
    assert known.pieces[: len(SPECIAL)] == [name.encode() for name in SPECIAL]
    assert known.chat_template == CHATML


def test_sentencepiece_tokens_joined_are_the_text_behind_a_space() -> None:
    tokenizer = sentencepiece_like()
    known = token_bytes(tokenizer, len(tokenizer))
    texts = [text for text in TEXTS if text and "▁" not in text]  # It stands for a space there.
    assert [joined(known, tokenizer, text) for text in texts] == [b" " + t.encode() for t in texts]
    assert known.special_tokens == (1, 2)
    assert known.pieces[-1] == b"<tool>" and known.pieces[3 + 0xE9] == b"\xe9"


def test_other_tokens_are_what_the_decoder_adds_for_them() -> None:
    tokenizer = wordpiece()
    known = token_bytes(tokenizer, len(tokenizer))
    assert joined(known, tokenizer, "playing the.") == b" playing the."


def test_ids_past_the_tokenizer_are_empty_and_those_past_the_model_are_left_out() -> None:
    tokenizer = byte_tokenizer()
    size = len(tokenizer)
    assert token_bytes(tokenizer, size + 3).pieces[-4:-1] == [
        token_bytes(tokenizer, size).pieces[-1],
        b"",
        b"",
    ]
    short = token_bytes(tokenizer, 3)
    assert (len(short.pieces), short.special_tokens) == (3, (0, 1, 2))


def test_of_several_templates_the_one_for_tools_is_told() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = {"default": "d", "tool_use": "t"}
    assert token_bytes(tokenizer, 3).chat_template == "t"
    tokenizer.chat_template = {"default": "d"}
    assert token_bytes(tokenizer, 3).chat_template == "d"


def test_a_reply_is_cut_where_its_lengths_say() -> None:
    packed = base64.b64encode(b"abcdef")
    reply = VocabularyReply(token_lengths=(1, 0, 5), special_tokens=(1,), tokens_b64=packed)
    known = Vocabulary.of(reply)
    assert known.pieces == (b"a", b"", b"bcdef")
    assert (known.special_tokens, known.chat_template) == (frozenset({1}), None)


@pytest.mark.parametrize(
    ("lengths", "packed"), [((1, 6), b"YWJjZGVm"), ((), b"YQ=="), ((1,), b"?")]
)
def test_a_reply_that_does_not_add_up_is_refused(lengths: tuple[int, ...], packed: bytes) -> None:
    with pytest.raises(ProtocolError):
        Vocabulary.of(VocabularyReply(token_lengths=lengths, tokens_b64=packed))
