"""hosts.txt: the documented lines, and each mistake with its sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.address import Address
from orchestrator.hosts import HostEntry, HostsError, parse_hosts, read_hosts

EXAMPLE = b"""\
local                                   # a subprocess here
gpu1.lan  device=cuda:0 quantization=nf4 python=/opt/venv/bin/python
alice@10.0.0.7:2222\tlayers=20:40 memory=20GiB env.HF_HOME=/data/hf

spare gpu9.lan                          # takes over when a stage is lost
command="kubectl exec -i llm-0 --" slots=2
[::1]:22 env.NOTE="two words" env.EMPTY=
"""


def test_the_documented_example() -> None:
    assert parse_hosts(EXAMPLE) == [
        HostEntry(line=1),
        HostEntry(
            line=2,
            address=Address("gpu1.lan"),
            device="cuda:0",
            quantization="nf4",
            python="/opt/venv/bin/python",
        ),
        HostEntry(
            line=3,
            address=Address("10.0.0.7", "alice", 2222),
            layers=(20, 40),
            memory_bytes=20 * 2**30,
            env=(("HF_HOME", "/data/hf"),),
        ),
        HostEntry(line=5, address=Address("gpu9.lan"), spare=True),
        HostEntry(line=6, command="kubectl exec -i llm-0 --", slots=2),
        HostEntry(
            line=7, address=Address("::1", None, 22), env=(("NOTE", "two words"), ("EMPTY", ""))
        ),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gpu1 gpus=2", "unknown key 'gpus='; known are slots, layers, python"),
        ("gpu1 layer=0:4", "unknown key 'layer='; did you mean 'layers='?"),
        ("gpu1 slots=1 slots=2", "'slots=' is given twice"),
        ("gpu1 env.A=1 env.A=2", "'env.A=' is given twice"),
        ("gpu1 env.A-B=1", "'A-B' is not a variable's name"),
        ("gpu1 env.STAGE=1", "env.STAGE would contradict the plan"),
        ("gpu1 spare", "'spare' stands behind the host; write 'spare' before the host"),
        ("gpu1 gpu2", "'gpu2' is not of the form key=value"),
        ("gpu1 device=", "'device=' has no value"),
        ("gpu1 device=gpu", "device=gpu must be auto, cpu, cuda, cuda:N or mps"),
        (
            "gpu1 quantization=int4",
            "quantization=int4 must be one of bfloat16, int8, nf4, int8-weight, int4-weight",
        ),
        ("gpu1 engine=slow", "engine=slow must be one of fast, stock, graphs"),
        (
            "gpu1 code=mine",
            "code=mine must be shipped (the worker's code is sent there) or installed",
        ),
        ("local code=installed", "code= is for workers elsewhere"),
        ("gpu1 layers=4:4", "layers=4:4 must be START:END with START below END"),
        ("gpu1 layers=-1:4", "layers=-1:4 must be START:END"),
        ("gpu1 layers=0:4 slots=2", "layers= names the layers of one stage"),
        ("spare gpu1 layers=0:4", "a spare host has no layers"),
        ("spare", "'spare' needs a host after it"),
        ("gpu1 slots=0", "slots=0 must be a number from 1 to 1024"),
        ("gpu1 memory=lots", "memory='lots' is not a size; write for example 20GiB"),
        ("gpu1 memory=20", "memory=20 has no unit; write for example memory=20GiB"),
        ("gpu1 memory=0GiB", "memory='0GiB' is not a size"),
        ("slots=2", "'slots=' stands before any host"),
        ("-oProxyCommand=x", "host '-oProxyCommand=x' begins with '-'"),
        ("me@-x", "host 'me@-x' begins with '-'"),
        ("gpu1:0", "port '0' must be a number from 1 to 65535"),
        ("gpu1:", "port '' must be a number from 1 to 65535"),
        ("::1", "write the IPv6 address in brackets: [::1]"),
        ("[::1", "'[::1' is not [IPv6] or [IPv6]:port"),
        ("[gpu1]:22", "'gpu1' in brackets is not an IPv6 address"),
        ("a/b", "'a/b' is not a host name"),
        ("@gpu1", "'' before '@' is not a user name"),
        ('command=""', "command= is empty"),
        ('command="sh -c \'x"', 'command="sh -c \'x" cannot be split into words'),
        ('gpu1 python="/opt', 'the quote " at column 13 is not closed'),
        ("gpu1 \x1b[0m", "control character '\\x1b' at column 6"),
    ],
)
def test_each_mistake_names_file_line_and_remedy(line: str, message: str) -> None:
    with pytest.raises(HostsError) as caught:
        parse_hosts(f"# head\nlocal\n{line}\n".encode())
    assert str(caught.value).startswith(f"hosts.txt:3: {message}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "hosts.txt: no host in the file; write one stage a line"),
        (b"# nothing\n\n", "hosts.txt: no host in the file"),
        (b"spare gpu9\n", "hosts.txt: only spare hosts"),
        (b"local\r\nlocal\r\ncaf\xe9\r\n", "hosts.txt:3: byte 0xe9 is not UTF-8"),
        ("local".encode("utf-16"), "hosts.txt:1: byte 0xff is not UTF-8"),
    ],
    ids=["empty", "comments", "spares", "latin-1", "utf-16"],
)
def test_a_file_without_a_usable_host(data: bytes, message: str) -> None:
    with pytest.raises(HostsError) as caught:
        parse_hosts(data)
    assert str(caught.value).startswith(message)


def test_harmless_bytes_do_no_harm() -> None:
    data = b"\xef\xbb\xbflocal \t \r\n\r\n\t# note\r\nlocal#2=x"
    with pytest.raises(HostsError, match=r"hosts.txt:4: 'local#2=x' is not a host name"):
        parse_hosts(data)
    assert [e.line for e in parse_hosts(data.rpartition(b"local")[0])] == [1]


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HostsError) as caught:
        read_hosts(tmp_path / "none.txt")
    assert "cannot read the hosts file (No such file or directory)" in str(caught.value)


@pytest.mark.parametrize("entry", parse_hosts(EXAMPLE), ids=lambda entry: entry.label)
def test_the_label_names_the_place_as_the_line_does(entry: HostEntry) -> None:
    assert entry.label in EXAMPLE.decode()
