"""Guess tokens and verify them in passes of several rows: the same answer, sooner."""
