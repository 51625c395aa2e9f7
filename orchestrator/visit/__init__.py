"""Programs of ours that a host's own Python runs, though nothing is installed there."""
