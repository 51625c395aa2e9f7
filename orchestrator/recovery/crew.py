"""What all stages of a pipeline share: their clients, the spares, the history, the user's ear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.bundle.records import Recorder, RecoveryRecord
from orchestrator.failures import StageFailure
from orchestrator.recovery.history import History
from orchestrator.recovery.policy import RecoveryPolicy
from orchestrator.recovery.spares import Bench, SpareSlot
from orchestrator.specs import StageSpec
from orchestrator.stage import StageClient, StageStatus
from orchestrator.stage.gate import StartGate
from orchestrator.stage.together import close_all
from orchestrator.timeouts import Timeouts
from worker.protocol.events import Op
from worker.protocol.ops import Request


class Crew:
    """Makes the clients of all stages, and ends what was made, whatever has become of it.

    Attributes:
        policy: how hard to try to bring a stage back.
        timeouts: every deadline.
        history: what every stage was sent.
        bench: the spare slots that nobody uses.
        on_notice: takes lines for the user.
        on_op: told of each op that a worker tells of, with the index of its stage.
        recoveries: every attempt to bring a stage back, in the order of their ends.
        failures: of stages that are not recovered; the first is the cause of those after it.
    """

    def __init__(
        self,
        num_stages: int,
        *,
        recorder: Recorder,
        timeouts: Timeouts,
        on_status: Callable[[StageStatus], None],
        policy: RecoveryPolicy,
        spares: Sequence[SpareSlot],
        on_notice: Callable[[str], None],
    ) -> None:
        self.policy = policy
        self.history = History(num_stages, policy.history_bytes)
        self.bench = Bench(spares)
        self.on_notice = on_notice
        self.on_op: Callable[[int, Op], None] = lambda stage, op: None
        self.recoveries: list[RecoveryRecord] = []
        self.failures: list[StageFailure] = []
        self._recorder = recorder
        self.timeouts = timeouts
        self._on_status = on_status
        self._all_serve = False
        self._gate = StartGate()
        self._clients: list[StageClient] = []

    def hire(
        self, spec: StageSpec, on_failure: Callable[[StageFailure, Request[Any] | None], None]
    ) -> StageClient:
        """Make a client, which is ended with the others unless it is dismissed before."""
        client = StageClient(
            spec,
            recorder=self._recorder,
            timeouts=self.timeouts,
            on_status=self._tell_status,
            on_failure=on_failure,
            on_op=lambda op: self.on_op(spec.stage, op),
            gate=self._gate,
        )
        self._clients.append(client)
        return client

    def dismiss(self, client: StageClient) -> None:
        """Forget a client that has been closed."""
        if client in self._clients:
            self._clients.remove(client)

    def all_serve(self) -> None:
        """Tell of the stages that start again alone, from now on, and only while they do."""
        self._all_serve = True

    def fail(self, failure: StageFailure) -> None:
        """Hear of a failure that is not recovered: it ends the ops on all stages."""
        self.failures.append(failure)
        for client in self._clients:
            client.abort(self.failures[0])

    def note_attempt(self, record: RecoveryRecord) -> None:
        """Keep the record of an attempt."""
        self.recoveries.append(record)
        self._recorder.recovery(record)

    def kill(self) -> None:
        """Send SIGKILL to every process now; `aclose` is still owed."""
        for client in self._clients:
            client.kill()

    async def aclose(self) -> None:
        """End every process by its ladder; see `close_all`."""
        await close_all(self._clients)

    def _tell_status(self, status: StageStatus) -> None:
        if not self._all_serve or status.phase in ("connecting", "loading"):
            self._on_status(status)
