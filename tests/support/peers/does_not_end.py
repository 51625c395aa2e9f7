"""Ignores the end of stdin, `shutdown` and SIGTERM, and has a child that does so too."""

import os
import signal
import subprocess
import sys

from tests.support.peers.honest import HonestPeer

signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", code])
print(f"child {child.pid}", file=sys.stderr, flush=True)
peer = HonestPeer()
try:
    peer.run()
finally:
    os.close(0)
    while True:
        signal.pause()
