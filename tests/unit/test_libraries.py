"""A host's torch and transformers are looked at before anything is loaded with them."""

from __future__ import annotations

import re
import tomllib

import pytest

from orchestrator.stage.libraries import LIBRARIES, other_library
from tests.support.stages import ROOT
from worker.protocol.events import Starting


def hello(torch: str | None, transformers: str | None, stub: bool = False) -> Starting:
    return Starting(
        protocol_version="1.0",
        version="0.1.0",
        python="3.12.1",
        torch=torch,
        transformers=transformers,
        pid=1,
        host="h",
        nonce="n",
        stub=stub,
    )


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (hello("2.13.0+cu130", "5.24.2"), None),
        (hello(None, None), None),
        (hello("2.1.0", "4.40.0", stub=True), None),
        (hello("2.13.1", "4.57.0"), "has transformers 4.57.0 (needs 5.24)"),
        (
            hello("2.1.3", "5.240.0"),
            "has torch 2.1.3 (needs 2.13) and transformers 5.240.0 (needs 5.24)",
        ),
    ],
)
def test_another_minor_version_is_named_with_the_one_needed(
    said: Starting, wrong: str | None
) -> None:
    found = other_library(said)
    assert (found and found.partition(" for its python 3.12.1; ")[0]) == wrong


def test_the_versions_are_those_that_the_package_needs() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    needed = tomllib.loads(text)["project"]["dependencies"]
    found = {
        name: re.fullmatch(rf"{name}(?:>=|~=)(\d+\.\d+).*", line)
        for name in LIBRARIES
        for line in needed
        if line.startswith(name)
    }
    assert {name: match and match[1] for name, match in found.items()} == LIBRARIES
