"""Errors of loading and running a slice; each text is one sentence with the next step."""

from __future__ import annotations


class UnsupportedModel(Exception):
    """The model, or the wish for it, cannot be served; raised before any weight is read."""


class LoadError(Exception):
    """Reading the weights did not give a complete stage."""


class CannotCrop(Exception):
    """The cache cannot go back to the asked length; start the request anew and replay it."""
