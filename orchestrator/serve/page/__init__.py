"""The chat page, and what it shows of the stages."""
