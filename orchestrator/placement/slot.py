"""One place for a stage, as a survey of its host found it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where one stage can run, and what is there for it.

    Attributes:
        name: how messages call the slot: `hosts.txt:3`, or `--local`.
        host: name of the place in messages.
        machine: the same for all slots on one machine; `""` where it is not known.
        device: where the stage would compute: `cpu`, `cuda:0`. Slots with the same machine and
            device share its memory and its speed.
        layers: half-open range that this slot must hold, or None where the plan chooses.
        is_even: whether `layers` come from the even split and not from the user.
        free_bytes: free on the device with the libraries of one worker loaded, before any
            `memory_limit_bytes` is counted.
        resident_bytes: what the libraries of one worker hold.
        memory_limit_bytes: bound of the whole worker, libraries included, or None.
        read_gbps: 10^9 bytes of bfloat16 weights a second that one row is multiplied by; 0 where
            it is not known.
        disk_free_bytes: free where weights are kept; shared by the slots of one machine.
        cache_path: the folder there where weights are kept.
        cached_groups: groups of tensors that are there at the commit to be run, whole.
        cached_files: weight files that are there at that commit, whole.
    """

    name: str
    host: str
    machine: str
    device: str
    quantization: str
    layers: tuple[int, int] | None = None
    is_even: bool = False
    free_bytes: int
    resident_bytes: int
    memory_limit_bytes: int | None = None
    read_gbps: float
    disk_free_bytes: int
    cache_path: str = ""
    cached_groups: frozenset[str] = frozenset()
    cached_files: frozenset[str] = frozenset()

    @property
    def shared_machine(self) -> str:
        """What slots on one machine have in common."""
        return self.machine or self.name

    @property
    def shared_cache(self) -> tuple[str, str]:
        """What slots with one cache have in common."""
        return self.shared_machine, self.cache_path

    @property
    def shared_device(self) -> tuple[str, str]:
        """What slots on one device have in common."""
        return self.shared_machine, self.device
