"""Compile a grammar in a process with bounds: some schemas of a few lines take for ever.

A thread that compiles cannot be stopped, and takes memory all the time. So what a client sends is
compiled here first, for a vocabulary of single bytes: what that costs does not depend on the
vocabulary.

Run as a program it reads a grammar on stdin. It exits with 0 also where that is none, as whoever
compiles it next will say why, and with 1 where an answer cannot be begun within the limits that
the library has.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TRIAL_S = 5
_TRIAL_BYTES = 2 * 1024**3
# Where an answer begins is where a grammar has the most ways to go on.
_TRIED_TOKENS = 4


def is_bounded(grammar: str) -> bool:
    """Tell whether a grammar compiles, and can be begun, within bounds; waits for that."""
    command = (sys.executable, "-P", str(Path(__file__).resolve()))
    try:
        # Twice the time of the processor, for a machine that is busy.
        tried = subprocess.run(
            command,
            input=grammar.encode("utf-8", "replace"),
            capture_output=True,
            timeout=2 * TRIAL_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0


def main() -> int:
    """Compile what stdin has."""
    # Imported here: the other end of this file needs none of it.
    import resource

    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    resource.setrlimit(resource.RLIMIT_AS, (_TRIAL_BYTES, _TRIAL_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_S, TRIAL_S))
    table = LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=[256])
    # Special tokens of a model are named by id, and this vocabulary has but one.
    grammar = re.sub(r"<\[\d+\]>", "<[256]>", sys.stdin.buffer.read().decode("utf-8"))
    matcher = LLMatcher(table, grammar, log_level=0)
    for _ in range(_TRIED_TOKENS):
        if matcher.is_error():
            return 0
        allowed = matcher.compute_bitmask()
        first = next((byte for byte in range(256) if allowed[byte // 8] >> byte % 8 & 1), None)
        if first is None:
            return 0
        if not matcher.consume_token(first):
            return 1
    return 0


class _Bytes:
    """Every byte, and an end."""

    bos_token_id = None
    eos_token_id = 256
    tokens = (*(bytes((byte,)) for byte in range(256)), b"")
    special_token_ids = (256,)

    def __call__(self, _text: bytes) -> list[int]:
        return []


if __name__ == "__main__":
    sys.exit(main())
