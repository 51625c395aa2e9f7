"""A stage that takes as long as it was told to, so that only the order of the work is measured.

Run as a script by `tools.bench.paced_stages`, which imports what this must not, to start fast:

    python -I -S paced_stage.py HELLO READY PACE HIDDEN_CHARS [the words of a worker's command line]

PACE is JSON: `step_ms` for an op of decode steps, `row_ms` for each of its rows on top, `token_ms`
for each token of a prefill chunk, `link_ms` for the way there, and the same for the way back.
"""

import json
import queue
import sys
import threading
import time
from typing import Any


class Stage:
    """Sleeps for each op, answers it, and tells how long that took."""

    def __init__(self, pace: dict[str, float], hidden_chars: int) -> None:
        self._pace = pace
        self._hidden = "A" * hidden_chars
        self._link_s = pace["link_ms"] / 1e3
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def serve(self) -> None:
        """Serve to the end of stdin."""
        threading.Thread(target=self._read, daemon=True).start()
        writer = threading.Thread(target=self._write)
        writer.start()
        idle_s = time.perf_counter()
        while line := self._taken():
            began_s = time.perf_counter()
            request = json.loads(line)
            op, rid = request["op"], request["request_id"]
            cost_ms = self._cost_ms(op, request)
            if cost_ms:
                time.sleep(cost_ms / 1e3)
            answer, hidden = self._answer(op, request)
            told = "" if hidden is None else f',"hidden_b64":"{hidden}"'
            text = json.dumps({"request_id": rid, **answer})[:-1] + told + "}\n"
            if op != "ping":
                now_s = time.perf_counter()
                event = {
                    "event": "op",
                    "op": op,
                    "rid": rid,
                    "duration_ms": (now_s - began_s) * 1e3,
                    "idle_ms_before": (began_s - idle_s) * 1e3,
                    "ok": True,
                    "in_bytes": len(line),
                    "out_bytes": len(text),
                    "stage": 0,
                    "wall_ms": time.time() * 1e3,
                    "uptime_ms": 0,
                }
                text += json.dumps(event) + "\n"
                idle_s = now_s
            self._say(text)
        self._say("")
        writer.join()

    def _cost_ms(self, op: str, request: dict[str, Any]) -> float:
        pace = self._pace
        if op == "together":
            rows = sum(_rows(one) for one in request["requests"])
            return pace["step_ms"] + rows * pace["row_ms"]
        if op not in ("embed_and_forward", "decode_step", "forward_range", "forward_and_sample"):
            return 0.0
        rows = _rows(request)
        if request.get("position", 0) and (rows == 1 or request.get("as_steps")):
            return pace["step_ms"] + rows * pace["row_ms"]
        return rows * pace["token_ms"]

    def _answer(self, op: str, request: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        if op == "together":
            answers = [self._answer(one["op"], one) for one in request["requests"]]
            hidden = [hidden for _, hidden in answers if hidden is not None]
            told = {"replies": [answer for answer, _ in answers]}
            return told, ".".join(hidden) if hidden else None
        if op in ("embed_and_forward", "decode_step", "forward_range"):
            return {"seq_len": _rows(request)}, self._hidden
        if op == "forward_and_sample":
            if request.get("sample_steps"):
                return {"steps": [{"token_id": 7}] * _rows(request)}, None
            return ({} if request.get("sample") is False else {"token_id": 7}), None
        replies: dict[str, dict[str, Any]] = {
            "tokenize": {"tokens": [1, 2, 3]},
            "detokenize": {"text": "x"},
            "release": {"released": True},
            "ping": {"pong": True},
            "shutdown": {"shutting_down": True},
        }
        return replies[op], None

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._lines.put((time.perf_counter() + self._link_s, line))
        self._lines.put((0.0, b""))

    def _taken(self) -> bytes:
        due_s, line = self._lines.get()
        _sleep_until(due_s)
        return bytes(line)

    def _say(self, text: str) -> None:
        self._answers.put((time.perf_counter() + self._link_s, text))

    def _write(self) -> None:
        while True:
            due_s, text = self._answers.get()
            if not text:
                return
            _sleep_until(due_s)
            sys.stdout.write(text)
            sys.stdout.flush()


def _rows(request: dict[str, Any]) -> int:
    tokens = request.get("tokens")
    return int(request.get("seq_len") or (len(tokens) if tokens else 1))


def _sleep_until(due_s: float) -> None:
    left_s = due_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)


def main() -> None:
    """Say hello and serve."""
    hello, ready, pace, hidden_chars, *words = sys.argv[1:]
    nonce = next(word.partition("=")[2] for word in words if word.startswith("--nonce="))
    sys.stdout.write(f"{hello.replace('NONCE', nonce)}\n{ready}\n")
    sys.stdout.flush()
    Stage(json.loads(pace), int(hidden_chars)).serve()


if __name__ == "__main__":
    main()
