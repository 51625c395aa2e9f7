"""What the speed benches say follows from what they measured; llama.cpp is asked as documented."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.bench import against, startup
from tools.bench.llama_rpc import LlamaFiles, serving, timed_of
from tools.bench.plain import Timed
from tools.bench.startup import Start, is_ready, phases_of

# Answers like a llama-server, with its own command line as the tokens of the text.
_SERVER = """\
#!{python}
import http.server, json, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def answer(self, values):
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(values).encode())
    def do_GET(self): self.answer({{"status": "ok"}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rpc = sys.argv[sys.argv.index("--rpc") + 1].split(",")
        timings = {{"prompt_per_second": len(asked["prompt"]), "predicted_per_second": len(rpc)}}
        self.answer({{"tokens": [asked["n_predict"], asked["temperature"]], "timings": timings}})
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
_RPC = """\
#!{python}
import signal
signal.pause()
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


def test_ratios_against_others_are_those_of_the_medians() -> None:
    found = {
        against.STAGELINE: [Timed((1, 2), n, 10.0) for n in (10.0, 30.0, 20.0)],
        against.PLAIN: [Timed((1, 2), 40.0, 5.0)],
    }
    assert against.ratios(found, against.PLAIN) == (0.5, 2.0)
    assert against.report(found).splitlines()[-1] == "the same tokens as transformers: yes"
    found[against.PLAIN].append(Timed((1, 3), 40.0, 5.0))
    assert against.as_json(found)["same_tokens"] is False


def test_llama_cpp_is_started_with_a_server_for_each_stage_and_ended(tmp_path: Path) -> None:
    for name, text in (("server", _SERVER), ("rpc", _RPC)):
        (tmp_path / name).write_text(text.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    files = LlamaFiles(tmp_path / "server", tmp_path / "rpc", tmp_path / "m.gguf")
    with serving(files, stages=2, threads=2, context=64) as llama:
        assert llama.answer([5, 6, 7], 4) == Timed((4, 0), 3.0, 2.0)


def test_an_answer_without_timings_is_an_error() -> None:
    with pytest.raises(KeyError):
        timed_of({"tokens": []})
