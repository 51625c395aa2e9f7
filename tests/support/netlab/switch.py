"""The switch between the hosts of a lab, a process of its own: `switch.py PID=ADDRESS …`.

It makes a TUN device in the network namespace of each process named, and passes packets between
them. It says `up` once that is done, then reads commands, one JSON object a line:
`{"host": 1, "link": {"up": false}}`, and answers each with `ok`. It ends with its stdin.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field

from tests.support.netlab.link import Lane, Link

MTU_BYTES = 1500
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
_CLONE_NEWNET = 0x40000000
# Packets taken from one device before the next one has its turn.
_BURST = 32


@dataclass
class Port:
    """One host's end at the switch."""

    fd: int
    link: Link = field(default_factory=Link)
    dead_until_s: float = 0.0
    uplink: Lane = field(default_factory=Lane)
    downlink: Lane = field(default_factory=Lane)

    def connect(self, link: Link) -> None:
        """Change what the link does from now on."""
        self.link = link
        lasts_s = link.outage_s if link.up else float("inf")
        self.dead_until_s = time.monotonic() + lasts_s


class Switch:
    """Passes packets between ports by their destination address.

    Args:
        ports: by IPv4 address, in network order.
    """

    def __init__(self, ports: dict[bytes, Port]) -> None:
        self._by_address = ports
        self._by_number = list(ports.values())
        self._by_fd = {port.fd: port for port in ports.values()}
        self._queue: list[tuple[float, int, Port, bytes]] = []
        self._num_queued = 0
        self._draw = random.Random(0)

    def run(self) -> None:
        """Pass packets and follow commands until stdin ends."""
        poll = select.epoll()
        for fd in (0, *self._by_fd):
            poll.register(fd, select.EPOLLIN)
        while True:
            self._deliver()
            wait_s = max(0.0, self._queue[0][0] - time.monotonic()) if self._queue else -1
            for fd, _ in poll.poll(wait_s):
                if fd != 0:
                    self._take(self._by_fd[fd])
                elif not self._obey(sys.stdin.readline()):
                    return

    def _obey(self, line: str) -> bool:
        if not line:
            return False
        command = json.loads(line)
        self._by_number[command["host"]].connect(Link(**command["link"]))
        print("ok", flush=True)
        return True

    def _take(self, source: Port) -> None:
        for _ in range(_BURST):
            try:
                packet = os.read(source.fd, 65536)
            except BlockingIOError:
                return
            target = self._by_address.get(packet[16:20])
            if packet[0] >> 4 != 4 or target is None:
                continue
            size, now_s = len(packet), time.monotonic()
            if now_s < source.dead_until_s:
                continue
            at_s = source.uplink.leaves_s(source.link, now_s, size, self._draw)
            if at_s != float("inf"):
                at_s = target.downlink.leaves_s(target.link, at_s, size, self._draw)
            if at_s != float("inf"):
                self._num_queued += 1
                heapq.heappush(self._queue, (at_s, self._num_queued, target, packet))

    def _deliver(self) -> None:
        now_s = time.monotonic()
        while self._queue and self._queue[0][0] <= now_s:
            _, _, target, packet = heapq.heappop(self._queue)
            if now_s < target.dead_until_s:
                continue
            try:
                os.write(target.fd, packet)
            except OSError as error:
                # EIO: the device is down, as its host is being ended.
                if error.errno not in (errno.EIO, errno.EAGAIN):
                    raise


def open_tun(pid: int, address: str) -> int:
    """Make a TUN device in a process's network namespace; return its descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network of process {pid}")
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"tun0", _IFF_TUN | _IFF_NO_PI))
        for words in (
            ("address", "add", f"{address}/24", "dev", "tun0"),
            ("link", "set", "tun0", "mtu", str(MTU_BYTES), "up", "txqueuelen", "2000"),
            ("link", "set", "lo", "up"),
        ):
            subprocess.run(["ip", *words], check=True)
        return fd
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(home)
        os.close(there)


def main(words: list[str]) -> None:
    """Run the switch."""
    ports: dict[bytes, Port] = {}
    for word in words:
        pid, _, address = word.partition("=")
        ports[socket.inet_aton(address)] = Port(open_tun(int(pid), address))
    print("up", flush=True)
    Switch(ports).run()


if __name__ == "__main__":
    main(sys.argv[1:])
