"""Slice, load and run part of a transformers model."""
