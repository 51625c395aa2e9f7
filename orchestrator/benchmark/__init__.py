"""`orchestrator bench`: how fast a model is on the user's own hosts, and where the time goes."""
