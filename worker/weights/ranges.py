"""Turn the pieces of tensors that are missing into range requests for several connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

MIB = 1024 * 1024
# The unit of the journal and of checksums: what a killed fetch may lose of each connection.
PIECE_BYTES = 4 * MIB
# Larger requests save nothing; smaller ones let the connections end together.
MOST_JOB_BYTES = 64 * MIB
JOBS_PER_CONNECTION = 4
# Bytes between two neighbours that are fetched and dropped rather than asking anew: about what a
# request costs in time on a 10 MB/s line, and in all no more than this share of what is needed.
MOST_GAP_BYTES = 256 * 1024
GAP_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class Piece:
    """At most `PIECE_BYTES` of one tensor: bytes [start, end) of `file`, and where they go.

    Attributes:
        part: which of the parts being filled it belongs to.
        index: its number among the pieces of that part.
        offset_bytes: where in the part's file it begins.
    """

    file: str
    start: int
    end: int
    part: int
    index: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """One range request: bytes [start, end) of `file`, its pieces in order, perhaps with gaps."""

    file: str
    start: int
    end: int
    pieces: tuple[Piece, ...]


def cut(size_bytes: int, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[int, int]]:
    """Yield the half-open pieces of a tensor of `size_bytes`; none of an empty one."""
    for start in range(0, size_bytes, piece_bytes):
        yield start, min(start + piece_bytes, size_bytes)


def plan_jobs(
    pieces: Iterable[Piece], connections: int, *, gap_share: float = GAP_SHARE
) -> list[Job]:
    """Merge neighbouring pieces and share them out as range requests, in file order.

    What is asked for in all is at most the pieces' own bytes plus `gap_share` of them. A large
    tensor becomes several jobs, so that it comes over several connections.
    """
    runs = _join(_neighbours(sorted(pieces, key=lambda p: (p.file, p.start))), gap_share)
    total_bytes = sum(run[-1].end - run[0].start for run in runs)
    share_bytes = total_bytes // (max(1, connections) * JOBS_PER_CONNECTION)
    job_bytes = min(max(share_bytes, PIECE_BYTES), MOST_JOB_BYTES)
    return [job for run in runs for job in _split(run, job_bytes)]


def _neighbours(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Gather pieces that touch each other."""
    runs: list[list[Piece]] = []
    for piece in pieces:
        last = runs[-1][-1] if runs else None
        if last is not None and (last.file, last.end) == (piece.file, piece.start):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs


def _join(runs: list[list[Piece]], gap_share: float) -> list[list[Piece]]:
    """Join runs over small gaps, the smallest first, as far as the share allows."""
    budget_bytes = int(gap_share * sum(p.end - p.start for run in runs for p in run))
    gaps = sorted(
        (right[0].start - left[-1].end, at)
        for at, (left, right) in enumerate(pairwise(runs), 1)
        if left[-1].file == right[0].file
    )
    bridged: set[int] = set()
    for gap_bytes, at in gaps:
        if gap_bytes > min(budget_bytes, MOST_GAP_BYTES):
            break
        budget_bytes -= gap_bytes
        bridged.add(at)
    joined: list[list[Piece]] = []
    for at, run in enumerate(runs):
        if at in bridged:
            joined[-1].extend(run)
        else:
            joined.append(list(run))
    return joined


def _split(run: list[Piece], job_bytes: int) -> Iterator[Job]:
    """Cut a run into jobs of even size, each at most about `job_bytes`, between pieces."""
    length = run[-1].end - run[0].start
    count = -(-length // job_bytes)
    begin = made = 0
    for at, piece in enumerate(run, 1):
        if at < len(run):
            # Cut at the end of the piece that is nearest to an even share.
            half_bytes = (run[at].end - run[at].start) / 2
            border = run[0].start + (made + 1) * length / count
            if made == count - 1 or piece.end + half_bytes <= border:
                continue
        yield Job(piece.file, run[begin].start, piece.end, tuple(run[begin:at]))
        begin = at
        made += 1
