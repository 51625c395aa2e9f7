"""One stage over HTTP: `orchestrator stage-http`."""
