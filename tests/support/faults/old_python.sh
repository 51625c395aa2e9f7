#!/bin/sh
# Says what a python older than 3.11 says to -P.
echo "Unknown option: -P" >&2
echo "usage: $0 [option] ... [-c cmd | -m mod | file | -] [arg] ..." >&2
echo "Try \`python -h' for more information." >&2
exit 2
