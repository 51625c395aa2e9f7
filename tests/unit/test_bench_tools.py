"""What the speed benches say follows from what they measured; llama.cpp is asked as documented."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.benchmark.stream import StreamSample
from tools.bench import startup
from tools.bench.answers import Answers, figures, ratios
from tools.bench.comparison import LLAMA, PLAIN, STAGELINE, Comparison
from tools.bench.llama_rpc import LlamaFiles, sample_of, serving
from tools.bench.startup import Start, is_ready, phases_of

# Answers like a llama-server: the number of its rpc-servers and of its streams as first tokens.
_SERVER = """\
#!{python}
import http.server, json, sys
def given(flag): return sys.argv[sys.argv.index(flag) + 1]
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def begin(self):
        self.send_response(200); self.end_headers()
    def event(self, tokens, predicted):
        event = {{"tokens": tokens, "tokens_predicted": predicted}}
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
    def do_GET(self): self.begin()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.begin()
        self.event([len(given("--rpc").split(","))], 1)
        self.event([int(given("--parallel"))], 2)
        self.event([asked["prompt"][0]], asked["n_predict"])
        self.event([], asked["n_predict"])
http.server.ThreadingHTTPServer(("127.0.0.1", int(given("--port"))), Handler).serve_forever()
"""
_RPC = """\
#!{python}
import socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
while True: listening.accept()[0].close()
"""
_ENDS = """\
#!{python}
raise SystemExit("no such device")
"""


def start(wall_s: float, cpu_s: float, **phases_ms: float) -> Start:
    return Start(wall_s, cpu_s, phases_ms)


def test_a_start_is_compared_with_the_bare_imports_and_the_reading() -> None:
    found = {
        "libraries": [start(1, 1)],
        "with classes": [start(n, 2.0) for n in (2.0, 3.0, 9.0)],
        "read": [start(1, 0.5)],
        "worker": [start(n, 5.0, plan=n, weights=1.0) for n in (4.0, 6.0, 7.0)],
    }
    assert startup.ratios(found, "with classes") == (1.5, 2.0)
    assert startup.phases(found["worker"]) == {"plan": 6.0, "weights": 1.0}
    assert "worker by (libraries + read): 3.00 of wall, 3.33 of cpu" in startup.report(found)


def test_a_workers_own_account_is_found_among_its_lines() -> None:
    lines = [b"no json", b"[1]", b'{"event":"boot_profile","phases_ms":{"plan":2.5}}', b"{}"]
    assert phases_of(lines) == {"plan": 2.5}
    assert phases_of(lines[:2]) == {}
    assert [is_ready(b'{"status":"ready"}'), is_ready(b'{"event":"pp_worker_ready"}')] == [
        True,
        False,
    ]


def test_a_program_that_fails_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="ended with 3"):
        startup.started(["-c", "raise SystemExit(3)"])


def sample(*token_ms: float, ids: tuple[int, ...] = (), begun_ms: float = 0.0) -> StreamSample:
    return StreamSample(10, begun_ms, token_ms, ids or tuple(range(len(token_ms))))


def test_of_one_answer_the_figures_are_its_own() -> None:
    alone = sample(500.0, 600.0, 1000.0)
    assert figures([Answers((alone,))]) == {
        "prefill_tokens_per_s": [20.0],
        "decode_tokens_per_s": [alone.decode_tokens_per_s],
        "tokens_per_s": [3.0],
    }


def test_of_several_answers_decoding_begins_when_each_has_its_first_token() -> None:
    together = Answers((sample(500.0, 1500.0, 3000.0), sample(1000.0, 2000.0, begun_ms=-1000.0)))
    assert figures([together]) == {
        "prefill_tokens_per_s": [10.0],
        "decode_tokens_per_s": [1.5],
        "tokens_per_s": [1.25],
    }


def test_ratios_against_others_are_those_of_the_medians() -> None:
    def answers(first_ms: float) -> Answers:
        return Answers((sample(first_ms, first_ms + 100.0),))

    mine, theirs = [answers(ms) for ms in (100.0, 900.0, 200.0)], [answers(400.0)]
    assert ratios(mine, theirs) == {
        "prefill_tokens_per_s": 2.0,
        "decode_tokens_per_s": 1.0,
        "tokens_per_s": pytest.approx(5 / 3),
    }


def test_another_token_than_that_of_transformers_is_told() -> None:
    found = Comparison.of((1, 2))
    one, two = sample(1.0, 2.0, ids=(1, 2)), sample(1.0, 2.0, ids=(3, 4))
    found.add(1, STAGELINE, Answers((one,)))
    found.add(1, PLAIN, Answers((one,)))
    found.add(1, LLAMA, Answers((sample(1.0, 2.0, ids=(1, 3)),)))
    found.add(2, STAGELINE, Answers((one, two)))
    told = "llama.cpp's first tokens that are Stageline's: 1 of 2\n"
    assert found.report().endswith(told + "the same tokens as transformers: yes")
    found.add(2, STAGELINE, Answers((one, one)))
    assert found.as_json()["same_tokens"] is False


def llama_files(folder: Path, server: str) -> LlamaFiles:
    for name, text in (("server", server), ("rpc", _RPC)):
        (folder / name).write_text(text.format(python=sys.executable))
        (folder / name).chmod(0o755)
    return LlamaFiles(folder / "server", folder / "rpc", folder / "m.gguf")


def test_llama_cpp_is_started_with_a_server_for_each_stage_and_ended(tmp_path: Path) -> None:
    files = llama_files(tmp_path, _SERVER)
    with serving(files, stages=2, threads=2, context=64, streams=3) as llama:
        answers = llama.answer([[5, 6, 7], [8]], 4)
    assert [(one.prompt_tokens, one.token_ids, len(one.token_ms)) for one in answers] == [
        (3, (2, 3, 5), 4),
        (1, (2, 3, 8), 4),
    ]


def test_a_llama_server_that_ends_is_told_with_its_words(tmp_path: Path) -> None:
    files = llama_files(tmp_path, _ENDS)
    with pytest.raises(RuntimeError, match="ended with 1; it said:\nno such device"):
        with serving(files, stages=1, threads=1, context=64, streams=1):
            pass


@pytest.mark.parametrize(
    ("lines", "error"),
    [([], ValueError), ([b": a comment", b""], ValueError), ([b'data: {"tokens": []}'], KeyError)],
)
def test_an_answer_without_tokens_is_an_error(lines: list[bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        sample_of(1, 0.0, [(1.0, line) for line in lines])
