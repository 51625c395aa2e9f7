"""The OpenAI-compatible HTTP interface: `orchestrator serve`."""
