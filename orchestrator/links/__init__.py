"""Hidden states that go straight from stage to stage, where the orchestrator is told to try."""
