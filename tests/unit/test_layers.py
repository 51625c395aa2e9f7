"""Each layer law catches the smallest tree that breaks it.

That the real tree keeps them all is a step of its own in tools/check.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.layers import Violation, violations


def broken(tmp_path: Path, path: str, source: str) -> list[Violation]:
    """Write one file into an empty tree; return the violations found there."""
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    return violations(tmp_path)


CAUGHT = [
    # worker.protocol is stdlib only, and so is the package file above it
    ("worker/protocol/ops.py", "import numpy", 1, "stdlib only"),
    ("worker/protocol/ops.py", "from worker import config", 1, "stdlib only"),
    ("worker/protocol/ops.py", "from ..serve import x", 1, "worker.serve.x: the protocol"),
    ("worker/protocol/__init__.py", "from ..serve import x", 1, "worker.serve.x: the protocol"),
    ("worker/__init__.py", "import psutil", 1, "stdlib only"),
    # torch at home only, and the home is entered lazily
    ("worker/serve.py", "def f():\n    import torch.nn", 2, "imports torch.nn: only"),
    ("worker/serve.py", "import importlib\nimportlib.import_module('torch')", 2, "imports torch"),
    ("worker/serve.py", "__import__('to' + 'rch')", 1, "computed name"),
    ("worker/cli.py", "from worker.model import load", 1, "at its top"),
    ("worker/cli.py", "from .backends.transformers import X", 1, "at its top"),
    ("worker/weights/fetch.py", "import safetensors.torch", 1, "imports safetensors.torch: only"),
    # the two programs meet in worker.protocol
    ("orchestrator/plan.py", "from worker.weights import index", 1, "only worker.protocol may"),
    ("orchestrator/plan.py", "def f():\n  import torch", 2, "imports torch: only"),
    ("worker/serve.py", "import orchestrator", 1, "the worker stands alone"),
    # the order of the orchestrator's layers
    ("orchestrator/transport/ssh.py", "from worker.protocol import ops", 1, "no messages"),
    ("orchestrator/transport/ssh.py", "from ..stage import StageClient", 1, "lowest layer"),
    ("orchestrator/stage.py", "from orchestrator.stages import P", 1, "no other stage"),
    ("orchestrator/stages/seats.py", "from ..transport.local import x", 1, "knows no process"),
    ("orchestrator/stages/stages.py", "import subprocess", 1, "knows no process"),
    ("orchestrator/bundle/reader.py", "from ..stage import x", 1, "reads files only"),
    # no hidden state
    ("worker/serve.py", "import os\nx = os.environ['A']", 2, "uses os.environ"),
    ("worker/serve.py", "import os as o\nx = o.getenv('A')", 2, "uses os.getenv"),
    ("worker/serve.py", "from os import environ", 1, "imports os.environ"),
    ("worker/serve.py", "def f():\n  global x\n  x = 1", 2, "rebinds a global"),
    # messages exist once, and tests use no mocks
    ("worker/serve.py", "emit({'event': 'op'})", 1, "spells out an event"),
    ("tests/unit/test_x.py", "from unittest.mock import Mock", 1, "not mocks"),
]


@pytest.mark.parametrize(("path", "source", "line", "text"), CAUGHT)
def test_a_broken_law_is_named_with_its_line(
    tmp_path: Path, path: str, source: str, line: int, text: str
) -> None:
    found = broken(tmp_path, path, source)
    assert [(f.path, f.line, text in f.text) for f in found] == [(path, line, True)], found


ALLOWED = [
    ("worker/protocol/ops.py", "import json\nfrom worker.protocol.schema import x"),
    ("worker/config.py", "import os\nx = os.environ['A']"),
    ("worker/model/load.py", "import torch\nfrom transformers import AutoModel"),
    ("worker/backends/transformers.py", "import torch\nfrom worker.model import load"),
    ("worker/cli.py", "def f():\n    from worker.backends.transformers import X"),
    (
        "orchestrator/stage.py",
        "from worker.protocol.ops import Ping\nfrom .transport.base import x",
    ),
    ("orchestrator/transport/local.py", "import asyncio.subprocess\nimport os\nos.kill(1, 2)"),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_what_the_design_allows_is_not_reported(tmp_path: Path, path: str, source: str) -> None:
    assert broken(tmp_path, path, source) == []
