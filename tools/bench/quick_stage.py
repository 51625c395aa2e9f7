"""A stage that answers at once with what it was told to, for measuring what is around it.

Run as a script by `tools.bench.quick_stages`, which imports what this must not, to start fast:

    python -I -S quick_stage.py HELLO READY HIDDEN_CHARS EVENT [words of a worker's command line]

HELLO is its first line with NONCE in it, READY its ready line. EVENT is told of each op, with the
op for OP and the request_id for RID, in one write with the next reply, as workers do; "" tells of
none. At the end of stdin it tells stderr of every request that was not released.
"""

import json
import sys


def main() -> None:
    """Serve to the end of stdin."""
    hello, ready, hidden_chars, event, *words = sys.argv[1:]
    nonce = next(word.partition("=")[2] for word in words if word.startswith("--nonce="))
    sys.stdout.write(f"{hello.replace('NONCE', nonce)}\n{ready}\n")
    sys.stdout.flush()
    hidden = '"seq_len":1,"hidden_b64":"' + "A" * int(hidden_chars) + '"'
    replies = {
        "tokenize": '"tokens":[1,2,3]',
        "detokenize": '"text":"x"',
        "embed_and_forward": hidden,
        "decode_step": hidden,
        "forward_range": hidden,
        "forward_and_sample": '"token_id":7',
        "release": '"released":true',
        "ping": '"pong":true',
        "shutdown": '"shutting_down":true',
    }
    live = set()
    behind = ""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        op, rid = request["op"], request["request_id"]
        if op == "release":
            live.discard(rid)
        elif op not in ("ping", "shutdown"):
            live.add(rid)
        sys.stdout.write(f'{behind}{{"request_id":{json.dumps(rid)},{replies[op]}}}\n')
        sys.stdout.flush()
        behind = ""
        if event and op != "ping":  # A worker's reader answers pings, and tells of none.
            behind = event.replace("OP", op).replace('"RID"', json.dumps(rid)) + "\n"
    sys.stdout.write(behind)
    sys.stdout.flush()
    if live:
        sys.stderr.write(f"not released: {sorted(live)}\n")


if __name__ == "__main__":
    main()
