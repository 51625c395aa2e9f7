"""Name the process that a silent stage may have left on its host."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.bundle.cause import Cause
from orchestrator.bundle.findings import Finding
from orchestrator.bundle.lookup import events
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.words import printable
from worker.protocol.events import Starting


def name_left_behind(bundle: Bundle, finding: Finding) -> Finding:
    """Advise to end a worker that answered nothing: elsewhere, only its connection was ended.

    A stopped process keeps its memory, also where another has taken its place since.
    """
    transports = {stage.host: stage.transport for stage in bundle.manifest.stages}
    if finding.cause != Cause.SILENT or transports.get(finding.host) == "local":
        return finding
    begun = [s for s in events(bundle, Starting, finding.stage) if s.wall_ms <= finding.at_ms]
    if not begun:
        return finding
    pid, host = begun[-1].event.pid, printable(finding.host, 80)
    told = f"pid {pid} on {host} may still be there, stopped, and hold its memory"
    return replace(finding, advice=f"{told}: kill it (`kill -9 {pid}`); {finding.advice}")
