"""`orchestrator setup`: Stageline and its pinned dependencies on hosts that have only Python."""
