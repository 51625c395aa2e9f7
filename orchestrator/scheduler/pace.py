"""How long a stage works and how long its link takes, and how many ops it needs at hand."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from worker.protocol.events import Op
from worker.protocol.ops import Request, RequestId

_SAMPLES = 16
# Below this a link is a pipe: the time is this program's own, and another op in the worker's pipe
# only takes away the choice of what comes next.
_LOCAL_S = 1e-3
_MOST_OPS = 64


class Pace:
    """Learns from the op events of one stage.

    Attributes:
        link_s: what an op takes beside the worker's own time, there and back.
        step_s: the worker's time for an op of decode steps; 0 before it is known.
        chunk_s: the same for a prefill chunk.
        step_window: how many ops to have under way so that the worker never waits for one.
        chunk_window: how many of them may be prefill chunks.
    """

    def __init__(self) -> None:
        self.link_s = self.step_s = self.chunk_s = 0.0
        self.step_window = self.chunk_window = 1
        self._sent: dict[tuple[str, RequestId], tuple[float, bool]] = {}
        self._answered: dict[tuple[str, RequestId], float] = {}
        self._links: deque[float] = deque(maxlen=_SAMPLES)

    def sent(self, request: Request[Any], *, is_step: bool) -> None:
        """Hear of an op in the moment it is sent."""
        if len(self._sent) >= _MOST_OPS:  # a worker need not tell of its ops
            oldest = next(iter(self._sent))
            del self._sent[oldest]
            self._answered.pop(oldest, None)
        key = (request.op, request.request_id)
        self._answered.pop(key, None)
        self._sent[key] = (time.perf_counter(), is_step)

    def answered(self, request: Request[Any]) -> None:
        """Hear of a reply in the moment it comes; what the worker tells of it may come later."""
        key = (request.op, request.request_id)
        if key in self._sent:
            self._answered[key] = time.perf_counter()

    def heard(self, op: Op) -> None:
        """Hear what the worker tells of an op, behind its reply."""
        key = (op.op, op.rid)
        sent, answered_s = self._sent.pop(key, None), self._answered.pop(key, None)
        if sent is None or op.first_call or not op.ok:
            return
        sent_s, is_step = sent
        worked_s = op.duration_ms / 1e3
        link_s = (answered_s or time.perf_counter()) - sent_s - worked_s
        # An op that the worker did not wait for has stood in its pipe, for nobody knows how long.
        if op.idle_ms_before > 0.05 and link_s > 0:
            self._links.append(link_s)
            self.link_s = min(self._links)
        if is_step:
            self.step_s = _blend(self.step_s, worked_s)
        else:
            self.chunk_s = _blend(self.chunk_s, worked_s)
        self.step_window = _window(self.link_s, self.step_s)
        self.chunk_window = _window(self.link_s, self.chunk_s)


def ops_wanted(paces: Iterable[Pace]) -> int:
    """Return how many ops of decode steps keep all stages busy."""
    return sum(pace.step_window for pace in paces)


def _window(link_s: float, work_s: float) -> int:
    if link_s < _LOCAL_S or not work_s:
        return 1
    # A tenth of an op is not worth another one waiting at the worker.
    return min(1 + math.ceil(link_s / work_s - 0.1), _MOST_OPS)


def _blend(known_s: float, new_s: float) -> float:
    return known_s + (new_s - known_s) / 8 if known_s else new_s
