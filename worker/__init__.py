"""One pipeline stage: reads ops as JSON lines, answers with JSON lines."""

__version__ = "0.1.0"
