"""What is asked with guesses and without: a text that repeats itself, and one that does not."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.request import GenerationRequest
from worker.protocol.ops import Sampling

_CODE = '''class Stack:
    """A last-in first-out stack of items."""

    def __init__(self):
        self.items = []

    def push(self, item):
        """Put an item on the top of the stack."""
        self.items.append(item)

    def pop(self):
        """Remove the top item and return it."""
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def peek(self):
        """Return the top item without removing it."""
        if not self.items:
            raise IndexError("peek at an empty stack")
        return self.items[-1]
'''


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt that is completed as it is, and how its answer is chosen.

    Attributes:
        about: what there is to guess, for people.
    """

    name: str
    about: str
    prompt: str
    sampling: Sampling

    def request(self, request_id: str, new_tokens: int, prefill_chunk: int) -> GenerationRequest:
        """Return a request; each one of a text has the same answer."""
        return GenerationRequest(
            request_id=request_id,
            prompt=self.prompt,
            max_new_tokens=new_tokens,
            sampling=self.sampling,
            ignore_eos=True,
            prefill_chunk=prefill_chunk,
        )


TEXTS = (
    Text(
        "quote",
        "code that the answer repeats",
        f"# stack.py\n{_CODE}\n# copy of stack.py\n{_CODE[:60]}",
        Sampling(),
    ),
    # Drawn, since small models repeat themselves when they are greedy: that could be guessed.
    Text(
        "story",
        "a story that is made up, drawn at temperature 1",
        "The old dog looked at the small boat, then at the grey sea, and thought",
        Sampling(temperature=1.0, seed=1),
    ),
)
