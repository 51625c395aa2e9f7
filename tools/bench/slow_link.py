"""Run a command behind a link that is so and so long: its stdin and stdout come later.

    python -S slow_link.py ONE_WAY_MS COMMAND…

Bytes are held back for the time of one way, in both directions; the link has no other limit.
"""

import os
import queue
import subprocess
import sys
import threading
import time


def carry(from_fd: int, to_fd: int, delay_s: float) -> None:
    """Move bytes, each so much later, until one end is closed."""
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        try:
            while True:
                due_s, chunk = waiting.get()
                time.sleep(max(0.0, due_s - time.monotonic()))
                if not chunk:
                    break
                while chunk:
                    chunk = chunk[os.write(to_fd, chunk) :]
        except OSError:
            pass  # The other end is gone, and with it the need.
        os.close(to_fd)

    threading.Thread(target=deliver, daemon=True).start()
    while True:
        chunk = os.read(from_fd, 1 << 16)
        waiting.put((time.monotonic() + delay_s, chunk))
        if not chunk:
            return


def main() -> int:
    """Run the command and return its exit code."""
    delay_s = float(sys.argv[1]) / 1e3
    command = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert command.stdin is not None and command.stdout is not None
    to_command, from_command = os.dup(command.stdin.fileno()), command.stdout.fileno()
    command.stdin.close()
    threading.Thread(target=carry, args=(0, to_command, delay_s), daemon=True).start()
    out = os.dup(1)
    threading.Thread(target=carry, args=(from_command, out, delay_s), daemon=True).start()
    code = command.wait()
    time.sleep(delay_s * 1.5 + 0.05)  # what it wrote last is still on its way
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    os._exit(main())
