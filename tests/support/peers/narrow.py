"""A launcher behind a narrow line: `narrow BYTES_PER_S PROGRAM …` runs it, both ways this slow."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import BinaryIO

STEP_BYTES = 512


def relay(source: BinaryIO, sink: BinaryIO, bytes_per_s: float) -> None:
    """Pass bytes on, a few at a time; then the end."""
    try:
        while chunk := source.read(STEP_BYTES):
            time.sleep(len(chunk) / bytes_per_s)
            sink.write(chunk)
        sink.close()
    except BrokenPipeError:
        pass  # The other side has enough.


def main() -> None:
    """Run the program until it ends."""
    bytes_per_s = float(sys.argv[1])
    program = subprocess.Popen(
        sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert program.stdin is not None
    assert program.stdout is not None
    with open(0, "rb", 0) as here, open(1, "wb", 0) as there:
        ways = ((here, program.stdin), (program.stdout, there))
        for source, sink in ways:
            threading.Thread(target=relay, args=(source, sink, bytes_per_s), daemon=True).start()
        sys.exit(program.wait())


if __name__ == "__main__":
    main()
