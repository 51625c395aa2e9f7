"""Programs that speak as a worker does and each break one rule; run with `python -m`."""
