"""Log probabilities are told in step with the text, with exact bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.answer_text import AnswerText
from orchestrator.generate import Finish, TokenOutput
from orchestrator.meter import Meter
from orchestrator.serve.openai.logprobs import ChatLogprobs, TextLogprobs
from orchestrator.serve.openai.token_logprob import ShownLogprobs, TokenLogprob
from orchestrator.vocabulary import Vocabulary

# Two tokens of half a character, and two with one text; 6 ends a text.
PIECES = (b"a", b" b", "é".encode()[:1], "é".encode()[1:], b"c", b"c", b"<end>")
END = 6
VOCABULARY = Vocabulary(PIECES, frozenset({END}), None)


def one(token_id: int, logprob: float | None, *top: tuple[int, float]) -> TokenLogprob:
    return TokenLogprob(token_id=token_id, logprob=logprob, top=top)


def test_half_a_character_has_its_exact_bytes_in_a_chat() -> None:
    assert ChatLogprobs(VOCABULARY).of([one(2, -1.0, (2, -1.0), (99, -2e4))]) == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -1.0,
                "bytes": [0xC3],
                "top_logprobs": [
                    {"token": "\ufffd", "logprob": -1.0, "bytes": [0xC3]},
                    {"token": "", "logprob": -9999.0, "bytes": []},
                ],
            }
        ],
        "refusal": None,
    }


def test_a_plain_completion_names_tokens_by_text_and_counts_characters() -> None:
    told = TextLogprobs(VOCABULARY)
    first = told.of([one(0, None), one(2, -1.0, (2, -1.0)), one(3, -0.5, (0, -0.1))])
    assert first == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [None, -1.0, -0.5],
        "top_logprobs": [None, {"bytes:\\xc3": -1.0}, {"a": -0.1, "bytes:\\xa9": -0.5}],
        "text_offset": [0, 1, 1],
    }
    # A special token has no width, and of two tokens with one text the likelier is told.
    assert told.of([one(END, -1.0), one(5, -3.0, (4, -1.0)), one(0, -1.0)]) == {
        "tokens": ["<end>", "c", "a"],
        "token_logprobs": [-1.0, -3.0, -1.0],
        "top_logprobs": [{"<end>": -1.0}, {"c": -1.0}, {"a": -1.0}],
        "text_offset": [2, 2, 3],
    }


# Whole characters.
PARTS = ((0,), (1,), (2, 3), (4,), (5,))


@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=8),
    st.sampled_from(["", "c", "é c", "bb", "a b"]),
)
def test_the_tokens_told_are_those_of_the_text_shown(parts: list[tuple[int]], stop: str) -> None:
    ids = [token_id for part in parts for token_id in part]
    outputs = asyncio.run(_outputs([*ids, END], stop))
    told, told_with_end = (
        [entry.token_id for output in outputs for entry in shown.take(output)]
        for shown in (ShownLogprobs(VOCABULARY), ShownLogprobs(VOCABULARY, with_end=True))
    )
    text = "".join(output.text for output in outputs)
    if outputs[-1].finish is not None and outputs[-1].finish.matched_stop is None:
        assert (told, told_with_end) == (ids, [*ids, END])
        return
    # Whole tokens up to the one that the text ends in.
    size, expected = 0, []
    for token_id in ids:
        if size < len(text.encode()):
            expected.append(token_id)
        size += len(PIECES[token_id])
    assert told == told_with_end == expected


async def _outputs(ids: Sequence[int], stop: str) -> list[TokenOutput]:
    """Return what `generate` makes of these tokens."""

    async def detokenize(tokens: Sequence[int]) -> str:
        return b"".join(PIECES[token] for token in tokens if token != END).decode(errors="replace")

    text, outputs = AnswerText(detokenize, (stop,) if stop else ()), []
    for token_id in ids:
        is_end = token_id == END
        shown = await text.finish() if is_end else await text.push(token_id)
        finish = None
        if is_end or text.matched is not None:
            finish = Finish(reason="stop", matched_stop=text.matched, timings=Meter().timings())
        outputs.append(
            TokenOutput(token_id=token_id, text=shown, logprob=-1.0, prompt_tokens=1, finish=finish)
        )
        if finish is not None:
            break
    return outputs
