"""The quick way to write an op's record gives what the rules of its fields give."""

from __future__ import annotations

import json

from hypothesis import given

from orchestrator.bundle.op_line import op_line
from orchestrator.bundle.records import OpRecord
from tests.support.messages import Values, fields_of
from worker.protocol.schema import parse, to_fields


@given(fields_of(OpRecord))
def test_any_op_is_written_as_its_field_rules_say(fields: Values) -> None:
    record = parse(OpRecord, fields)
    ruled = json.dumps(to_fields(record), separators=(",", ":"), ensure_ascii=False)
    assert op_line(record) == ruled
