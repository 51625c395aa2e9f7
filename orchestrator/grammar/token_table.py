"""A model's tokens, as the grammar library wants them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from llguidance import LLTokenizer, TokenizerWrapper

from orchestrator.grammar.refused import GrammarRefused
from orchestrator.vocabulary import Vocabulary


class _Pieces:
    """What `TokenizerWrapper` asks for."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.tokens: Sequence[bytes] = vocabulary.pieces
        self.special_token_ids: Sequence[int] = sorted(vocabulary.special_tokens)

    def __call__(self, _text: bytes) -> list[int]:
        # Only asked to tokenize text that a grammar forces, which `no_forcing` turns off: the
        # model itself then chooses how that text is cut into tokens.
        return []


def token_table(vocabulary: Vocabulary, eos_token_ids: Collection[int]) -> LLTokenizer:
    """Return the table of a vocabulary.

    Takes 0.2 s for 50k tokens and 0.7 s for 150k (one core of a Xeon). The library holds the
    interpreter meanwhile, so that even in a thread everything waits: make it once.

    Args:
        vocabulary: of the model.
        eos_token_ids: the tokens that end an answer.

    Raises:
        GrammarRefused: the model has no tokens with text, or none that ends an answer.
    """
    ends = sorted(one for one in eos_token_ids if 0 <= one < len(vocabulary.pieces))
    if not ends or not any(vocabulary.pieces):
        raise GrammarRefused(
            f"the model tells the text of {sum(map(bool, vocabulary.pieces))} tokens and "
            f"{len(ends)} tokens that end an answer, and at least one of each is needed to hold "
            "answers to a form; ask for plain text"
        )
    wrapper = TokenizerWrapper(_Pieces(vocabulary, ends[0]))
    return LLTokenizer(wrapper, eos_token=ends, slices=LLTokenizer.json_slices())
