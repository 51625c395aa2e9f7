"""Roles follow from the slice, and an op on the wrong role names the serving one."""

from __future__ import annotations

import pytest

from worker.protocol.ops import OPS
from worker.protocol.roles import StageIdentity
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.protocol.stage import StageSlice

FIRST = {"tokenize", "embed_and_forward", "decode_step", "connect", "vocabulary"}
MIDDLE = {"forward_range", "connect", "listen"}
LAST = {"forward_and_sample", "detokenize", "listen"}
ANY = {"together", "release", "ping", "shutdown", "environment"}


@pytest.mark.parametrize(
    ("own", "ops"),
    [
        (StageSlice(0, 2, 6), FIRST | ANY),
        (StageSlice(2, 4, 6), MIDDLE | ANY),
        (StageSlice(4, 6, 6), LAST | ANY),
        (StageSlice(0, 6, 6), FIRST | LAST | {"generate_full"} | ANY),
    ],
)
def test_ops_of_each_slice(own: StageSlice, ops: set[str]) -> None:
    identity = StageIdentity(own)
    assert set(identity.ops()) == ops
    for name, request in OPS.items():
        if name not in ops:
            with pytest.raises(ProtocolError) as caught:
                identity.require_role(request)
            assert caught.value.code is ErrorCode.WRONG_ROLE


def test_wrong_role_names_the_op_the_serving_role_and_this_worker() -> None:
    with pytest.raises(ProtocolError) as caught:
        StageIdentity(StageSlice(0, 3, 6), 0, 2).require_role(OPS["detokenize"])
    assert caught.value.text == (
        "op 'detokenize' is only valid on the final stage (this worker is stage 0 of 2)"
    )


@pytest.mark.parametrize("bounds", [(0, 0, 4), (3, 2, 4), (0, 5, 4), (-1, 2, 4)])
def test_a_slice_outside_the_model_is_refused(bounds: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="not a non-empty range"):
        StageSlice(*bounds)
