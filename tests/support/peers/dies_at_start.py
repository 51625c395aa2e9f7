"""Ends before its first line, with a reason on stderr."""

import sys

print("no such device", file=sys.stderr)
sys.exit(7)
