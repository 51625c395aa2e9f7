"""What the speculation bench asks, and a drafter that is never right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.prefixes import Lease
from orchestrator.request import GenerationRequest
from orchestrator.speculation.drafter import Draft
from orchestrator.speculation.pass_costs import PassCosts
from orchestrator.speculation.speculated import Bounds, SpeculatedTokens
from orchestrator.stages import Stages

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
_TEXT = (
    "The lighthouse at Cape Morrow was built in 1871 by the engineer Anna Lindqvist. Its lamp "
    "burned whale oil until 1904, when it was replaced by an electric arc. The keeper's house "
    "stands to the north of the tower, and a path of white stones leads from it down to the old "
    "harbour, where the supply boats used to land twice a month."
)
_JSON = """[
  {"id": 1, "name": "Ada", "role": "admin", "active": true},
  {"id": 2, "name": "Grace", "role": "editor", "active": true},
  {"id": 3, "name": "Linus", "role": "viewer", "active": false}
]"""
_STATS = '''import math


def mean(values):
    """Return the arithmetic mean."""
    return sum(values) / len(values)


def variance(values):
    """Return the population variance."""
    middle = mean(values)
    return sum((value - middle) ** 2 for value in values) / len(values)
'''
_ACCOUNT = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
"""
_MINUTES = (
    "The council met on Tuesday evening to discuss the new bridge over the river Aune. Mrs. "
    "Halvorsen, who leads the planning office, said that the work would begin in March and last "
    "for eighteen months. During that time the ferry will run every twenty minutes. The costs of "
    "forty-two million crowns are shared by the town and the county."
)
_CSV = "id,city,country,people\n1,Oslo,Norway,709000\n2,Bergen,Norway,291000\n3,Malmo,Sweden,351000"

# By kind: whether it is completed as it is, and the text.
PROMPTS: dict[str, list[tuple[bool, str]]] = {
    "quote": [
        (True, f"# stack.py\n{_CODE}\n# copy of stack.py\n{_CODE[:60]}"),
        (False, f"Repeat this text word for word:\n\n{_TEXT}"),
        (True, f"# data.json\n{_JSON}\n# data.json, the same again\n[\n"),
        (False, f"Copy this code exactly and change nothing:\n\n{_CODE}"),
        (True, f'Article:\n{_TEXT}\n\nThe article says, in full: "The lighthouse at'),
        (False, f"Quote the sentences about the lamp and the path from this text:\n\n{_TEXT}"),
    ],
    "edit": [
        (
            True,
            f"# stats.py\n{_STATS}\n# stats.py again, with type hints\nimport math\n\n\ndef mean(",
        ),
        (False, f"Rename the class Stack to Pile in this code and show all of it:\n\n{_CODE}"),
        (False, f"Here is my code. Return the whole file with docstrings added:\n\n{_ACCOUNT}"),
        (False, f"List the sentences of this text as a numbered list:\n\n{_MINUTES}"),
        (True, f'{_CSV}\n\nThe same table as JSON:\n[\n  {{"id": 1, "city": "Oslo",'),
        (False, f"Correct the spelling of this text, change nothing else:\n\n{_MINUTES}"),
    ],
    "chat": [
        (False, "Why is the sky blue? Explain it to a child."),
        (False, "Write a short story about a dog who learns to sail."),
        (False, "What should I think about before I buy a bicycle?"),
        (False, "Give me some ideas for a birthday party in the garden."),
        (False, "How do plants make sugar from sunlight?"),
        (False, "Tell me about the history of the printing press."),
    ],
}


class _Wrong:
    """Guesses fifteen tokens that do not come; costs no time."""

    takes_time = False

    async def guess(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        """Guess one rare token, time and again."""
        return Draft((100,) * most, (0,) * most)

    async def aclose(self) -> None:
        """Hold nothing."""


class _WrongSpeculator:
    def __init__(self, pipeline: Stages) -> None:
        self._pipeline = pipeline
        self._costs = PassCosts(pipeline.facts.max_rows, lambda: pipeline.links_s)

    def open(self, request: GenerationRequest, lease: Lease, bounds: Bounds) -> SpeculatedTokens:
        """Return the source of a request's tokens."""
        return SpeculatedTokens(self._pipeline, request, lease, bounds, _Wrong(), self._costs)


def always_wrong(pipeline: Stages) -> Any:
    """Return what guesses wrongly for every request."""
    return _WrongSpeculator(pipeline)
