"""Processes that speak in lines: local, over SSH, or through any launcher. Knows no messages."""
