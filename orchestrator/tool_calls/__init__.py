"""Calls of tools in what a model writes: found while it streams, or forced by a grammar."""
