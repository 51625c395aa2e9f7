"""The wire: stdlib only, shared by both programs."""
