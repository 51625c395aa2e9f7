"""Starts the stages of one model on several hosts, streams the text, leaves a bundle."""

__version__ = "0.1.0"
