"""One self-contained HTML page about a bundle."""
