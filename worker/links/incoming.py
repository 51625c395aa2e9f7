"""The receiving end of a link: hidden states by ticket, kept until the op comes that wants them."""

from __future__ import annotations

import socket
import threading

from worker.links.errors import LinkClosed, NothingHanded
from worker.links.wire import ACCEPTED, Frame, Kind, hang_up, read_frame

# What nobody asks for, or not soon, must not pile up.
_MOST_HELD = 256


class Incoming:
    """Reads all the time, so that the stage before never waits for this one.

    Args:
        connection: proven to be the stage before, which waits to be told; closed when it ends.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._news = threading.Condition()
        self._held: dict[int, Frame] = {}
        self._lost: str | None = None
        self._dropped = -1  # the highest ticket of those that nobody asked for in time

    def start(self) -> None:
        """Tell the stage before that it is let in, and read from then on."""
        threading.Thread(target=self._read, name="worker_link", daemon=True).start()

    def take(self, ticket: int) -> bytes:
        """Wait for what the stage before hands on; base64.

        Raises:
            NothingHanded: it failed there, it was not kept for so long, or the link is lost.
        """
        with self._news:
            self._news.wait_for(
                lambda: ticket in self._held or ticket <= self._dropped or self._lost is not None
            )
            frame = self._held.pop(ticket, None)
        if frame is None and self._lost is None:
            raise NothingHanded(
                f"they were not kept until they were asked for ({_MOST_HELD} others came since)"
            )
        if frame is None:
            raise NothingHanded(f"the link from the stage before is lost: {self._lost}")
        if frame.kind is Kind.FAILED:
            raise NothingHanded(f"the stage before failed: {frame.data.decode(errors='replace')}")
        return frame.data

    def close(self) -> None:
        """End the link; a `take` that waits fails."""
        hang_up(self._connection)

    def _read(self) -> None:
        why = "closed"
        try:
            # By the thread that reads: a TLS connection is for one thread at a time.
            self._connection.sendall(ACCEPTED)
            while True:
                frame = read_frame(self._connection)
                if frame.kind is not Kind.WARM:
                    self._keep(frame)
        except LinkClosed as error:
            why = str(error)
        except OSError as error:
            why = error.strerror or str(error)
        finally:
            self._connection.close()
            with self._news:
                self._lost = why
                self._news.notify_all()

    def _keep(self, frame: Frame) -> None:
        with self._news:
            self._held[frame.ticket] = frame
            while len(self._held) > _MOST_HELD:
                oldest = next(iter(self._held))
                del self._held[oldest]
                self._dropped = max(self._dropped, oldest)
            self._news.notify_all()
