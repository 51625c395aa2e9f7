"""Runs that break in one known way each, and what the diagnosis must say of them."""
