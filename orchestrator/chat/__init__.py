"""A chat in the terminal: `orchestrator chat`."""
