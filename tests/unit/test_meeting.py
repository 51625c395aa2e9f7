"""Visits of hosts whose server takes few logins at once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from orchestrator.specs import StageSpec
from orchestrator.stage.gate import StartGate
from orchestrator.transport.ssh import SshTarget
from orchestrator.visit.departure import VisitFailed
from orchestrator.visit.meeting import met

# An ssh client whose first logins the server drops.
DROPPING = """\
#!/bin/sh
echo login >>'{folder}/logins'
if [ "$(wc -l <'{folder}/logins')" -le {drops} ]; then
  echo 'kex_exchange_identification: read: Connection reset by peer' >&2
  exit 255
fi
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
"""


def version_there(folder: Path, drops: int, limit_s: float) -> tuple[int, int, int]:
    client = folder / "ssh"
    client.write_text(DROPPING.format(folder=folder, drops=drops))
    client.chmod(0o755)
    spec = StageSpec(
        stage=0,
        num_stages=1,
        host="node-b",
        transport="ssh",
        ssh=SshTarget(host="node-b", ssh_command=str(client)),
    )

    async def ask() -> tuple[int, int, int]:
        async with met(spec, (sys.executable,), limit_s, StartGate()) as (_, interpreter):
            return interpreter.version

    return asyncio.run(ask())


def test_a_login_that_the_server_drops_is_tried_again(tmp_path: Path) -> None:
    version = version_there(tmp_path, drops=1, limit_s=30)
    logins = (tmp_path / "logins").read_text().split()
    assert (version, len(logins)) == (sys.version_info[:3], 2)


def test_logins_that_are_always_dropped_end_in_time_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(VisitFailed, match="closed the SSH connection during the login"):
        version_there(tmp_path, drops=99, limit_s=0.5)
