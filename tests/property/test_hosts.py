"""hosts.txt: what was written is what is read, and any mistake has its line."""

from __future__ import annotations

import contextlib
import re

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.address import Address
from orchestrator.hosts import HostEntry, HostsError, parse_hosts

NAME = st.from_regex(r"[a-z][a-z0-9_.-]{0,12}", fullmatch=True).filter(
    lambda name: name not in ("local", "spare")
)
IPV6 = st.ip_addresses(v=6).map(str)
PORT = st.none() | st.integers(1, 65535)
VALUE = st.text(
    alphabet=st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12
).filter(str.strip)
PLACE = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"address": st.builds(Address, NAME | IPV6, st.none() | NAME, PORT)},
    ),
    st.fixed_dictionaries({"command": st.just('docker exec -i "a b" --')}),
)
KEYS = st.fixed_dictionaries(
    {},
    optional={
        "python": VALUE,
        "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:1", "mps"]),
        "quantization": st.sampled_from(["bfloat16", "int8", "nf4", "int4-weight"]),
        "engine": st.sampled_from(["fast", "stock", "graphs"]),
        "memory_bytes": st.integers(1, 2**50),
        "env": st.dictionaries(
            st.from_regex(r"[A-Z]{6,8}", fullmatch=True), VALUE | st.just(""), max_size=2
        ).map(lambda env: tuple(env.items())),
    },
)
RANGE = st.tuples(st.integers(0, 50), st.integers(1, 50)).map(lambda p: (p[0], p[0] + p[1]))
ROLE = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"slots": st.integers(1, 9)}),
    st.fixed_dictionaries({"layers": RANGE}),
    st.just({"spare": True}),
)
FIELDS = st.tuples(PLACE, KEYS, ROLE).map(lambda parts: {**parts[0], **parts[1], **parts[2]})


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def line_of(entry: HostEntry) -> str:
    place = f"command={quoted(entry.command)}" if entry.command else entry.label
    words = ["spare"] * entry.spare + [place]
    words += [f"slots={entry.slots}"] * (entry.slots > 1)
    if entry.layers:
        words.append(f"layers={entry.layers[0]}:{entry.layers[1]}")
    for key in ("python", "device", "quantization", "engine"):
        if (value := getattr(entry, key)) is not None:
            words.append(f"{key}={quoted(value)}")
    if entry.memory_bytes is not None:
        words.append(f"memory={entry.memory_bytes}B")
    words += [f"env.{name}={quoted(value)}" for name, value in entry.env]
    return " ".join(words)


@given(
    st.lists(FIELDS, min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n", "\r", "\n\n", "  # note\n", "\t \n"]),
    st.sampled_from(["", "\ufeff"]),
)
def test_what_is_written_is_what_is_read(
    fields: list[dict[str, object]], end: str, mark: str
) -> None:
    step = 2 if end == "\n\n" else 1
    entries = [
        HostEntry(line=1 + i * step, **known)  # type: ignore[arg-type]
        for i, known in enumerate([*fields, {}])  # The last is a host that is no spare.
    ]
    text = mark + "".join(line_of(entry) + end for entry in entries)
    assert parse_hosts(text.encode("utf-8")) == entries


FRAGMENT_WORDS = (
    *("local", "spare", "gpu1", "u@", "-o", "[::1]", ":22", "slots=", "layers=0:", "7", "=", "#"),
    *("command=", '"', "'", " ", "\t", "\n", "\r", "\\", "env.", "A=", "\0", "é", "memory=1G"),
)  # fmt: skip
FRAGMENTS = st.lists(st.sampled_from(FRAGMENT_WORDS), max_size=12).map("".join)


@given(FRAGMENTS.map(lambda text: text.encode("utf-8")) | st.binary(max_size=40))
def test_any_mistake_is_one_sentence_with_its_line(data: bytes) -> None:
    with contextlib.suppress(HostsError):
        parse_hosts(data)
        return
    try:
        parse_hosts(data)
    except HostsError as error:
        # Of a file without hosts no line is wrong.
        if re.match(r"hosts\.txt: (no host in the file|only spare hosts); ", str(error)):
            return
        match = re.match(r"hosts\.txt:(\d+): \S", str(error))
        assert match and 1 <= int(match[1]) <= 1 + data.count(b"\n") + data.count(b"\r")
        assert "\n" not in str(error)
