"""What the tests with other people's client programs share."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call a function: <tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
Answer with <tool_call>{"name": name, "arguments": object}</tool_call><|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""
_NODE = ROOT / "tests" / "clients" / "node"


def client_package(name: str) -> Any:
    """Import a client, or skip the module that needs it; under CI it must be there."""
    return importlib.import_module(name) if os.environ.get("CI") else pytest.importorskip(name)


def words(ids: list[int]) -> str:
    """Write tokens as a stub does."""
    return " ".join(map(str, ids))


def taught_tools(model: Path, folder: Path) -> Path:
    """Return the model of another folder with a chat template that has a place for tools."""
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    template = folder / "chat_template.jinja"
    template.unlink()
    template.write_text(CHAT_TEMPLATE)
    return folder


def installed_npm_client(folder: Path) -> Path:
    """Install the npm client that the lock file names; return the script that asks.

    Skips the test where there is no npm, except under CI.
    """
    if shutil.which("npm") is None and not os.environ.get("CI"):
        pytest.skip("no npm here")
    for file in _NODE.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    words = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error")
    subprocess.run(words, cwd=folder, check=True, timeout=100, stdin=subprocess.DEVNULL)
    return folder / "ask.mjs"


def ask_by_node(script: Path, url: str, model: str, *questions: tuple[str, Any]) -> list[Any]:
    """Ask a server through the npm client, one after the other; return what came."""
    asked = json.dumps({"url": f"{url}/v1", "model": model, "questions": questions})
    done = subprocess.run(
        ["node", str(script), asked], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers
