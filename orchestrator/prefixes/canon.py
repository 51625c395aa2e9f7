"""In which pieces a prompt is computed: fixed by the request, whatever is kept of earlier ones.

The keys and values of a position have other last bits in a prefill chunk than in a decode step, and
in a chunk of another length. So what is kept may be used only where it was computed in the very
pieces in which it would be computed now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from orchestrator.chunk import Chunk
from orchestrator.recovery.replay import MOST_ROWS

Pieces = tuple[Chunk, ...]


def canonical(
    prompt: Sequence[int], chunk_tokens: int, answers: Iterable[tuple[int, int]] = ()
) -> Pieces:
    """Return a prompt in prefill chunks, and its answers as decode steps.

    Args:
        prompt: ids.
        chunk_tokens: tokens of a chunk; they are counted from the start and from each answer's end.
        answers: start and end of each, in order; none is at 0, and the last token is in none.
    """
    pieces: list[Chunk] = []
    at = 0
    for start, end in (*answers, (len(prompt), len(prompt))):
        for begin in range(at, start, chunk_tokens):
            pieces.append(Chunk(tuple(prompt[begin : min(begin + chunk_tokens, start)]), begin))
        if start < end:
            pieces.append(steps(prompt[start:end], start))
        at = end
    return tuple(pieces)


def answers_of(
    prompt: Sequence[int], starts: Iterable[int], ends: Collection[int]
) -> list[tuple[int, int]]:
    """Return where the answers stand in a prompt.

    An answer goes up to the first end-of-text id: whether the model gave that id, or the template
    wrote it behind an answer that was cut off, it was not computed then.

    Args:
        prompt: ids.
        starts: where each answer begins, in order.
        ends: end-of-text ids; an answer without one is none.
    """
    answers: list[tuple[int, int]] = []
    at = 0
    for start in starts:
        end = next((i for i in range(start, len(prompt)) if prompt[i] in ends), None)
        if end is not None and max(at, 1) <= start < end:
            answers.append((start, end))
            at = end
    return answers


def steps(tokens: Sequence[int], position: int) -> Chunk:
    """Return tokens that are computed one by one, however many of them go in one op."""
    return Chunk(tuple(tokens), position, as_steps=True)


def shared(kept: Pieces, wanted: Pieces) -> int:
    """Return how many positions of `wanted` were computed in `kept` as they are wanted.

    The last piece of `wanted` is never among them, as its outputs are needed.
    """
    at = 0
    for mine, theirs in zip(kept, wanted, strict=False):
        if mine == theirs:
            at = mine.end
            continue
        if mine.as_steps and theirs.as_steps:
            at = mine.position + same_start(mine.tokens, theirs.tokens)
        break
    return min(at, wanted[-1].position)


def cut(pieces: Pieces, length: int) -> list[Chunk]:
    """Return the pieces of the first `length` positions; a chunk is not cut but left out."""
    kept = [piece for piece in pieces if piece.end <= length]
    if len(kept) < len(pieces):
        broken = pieces[len(kept)]
        if broken.as_steps and broken.position < length:
            kept.append(steps(broken.tokens[: length - broken.position], broken.position))
    return kept


def ops(pieces: Pieces, done: int) -> tuple[Chunk, ...]:
    """Return what is to be sent of pieces whose first `done` positions are computed."""
    found: list[Chunk] = []
    for piece in pieces:
        if not piece.as_steps:
            found += [piece] if piece.position >= done else []
            continue
        for start in range(max(piece.position, done), piece.end, MOST_ROWS):
            offset = start - piece.position
            tokens = piece.tokens[offset : offset + MOST_ROWS]
            found.append(Chunk(tokens, start, as_steps=len(tokens) > 1))
    return tuple(found)


def same_start(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many ids at the start are the same."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle
    return low
