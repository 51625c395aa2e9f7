"""Benches: two ways of doing one thing, side by side in one run."""
