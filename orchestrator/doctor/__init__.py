"""`orchestrator doctor`: what every host has, and the command that mends what it lacks."""
