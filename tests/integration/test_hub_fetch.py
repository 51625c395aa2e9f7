"""Ranges from a hub that misbehaves: the right bytes, each once, or one sentence."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as altered
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub import close_session

from tests.support.hub import COMMIT, Hub, serve_hub
from tests.support.hub_faults import Fault
from worker.failures import LoadFailed
from worker.weights.hub_file import FetchStopped, HubFile, HubSource
from worker.weights.retry import FetchLimits

REPO = "org/model"
FILE = "model.safetensors"
CONTENT = random.Random(0).randbytes(300_000)
# What the faults below let through is less than counts as progress.
QUICK = FetchLimits(
    connect_s=2.0,
    head_s=2.0,
    stall_s=5.0,
    slowest_bytes_per_s=1000.0,
    attempts=3,
    progress_bytes=1000,
    first_delay_s=0.001,
    longest_delay_s=0.002,
)
Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def no_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each test's client the certificates, which nothing here needs: 40 ms each."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / FILE).write_bytes(CONTENT)
    return tmp_path


@pytest.fixture
def hub(model: Path) -> Iterator[Hub]:
    with serve_hub(Hub({REPO: model})) as served:
        yield served


@pytest.fixture
def cdn_hub(model: Path) -> Iterator[Hub]:
    with serve_hub(Hub({REPO: model}, with_cdn=True)) as served:
        yield served


def source_of(hub: Hub, repo_id: str = REPO, commit: str = COMMIT, **limits: Any) -> HubSource:
    return HubSource(repo_id, commit, hub.endpoint, limits=altered(QUICK, **limits))


def file_of(size_bytes: int = len(CONTENT), etag: str | None = None) -> HubFile:
    return HubFile(FILE, size_bytes, etag)


def sentence(act: Callable[[], object]) -> str:
    with pytest.raises(LoadFailed) as caught:
        act()
    assert "\n" not in caught.value.text
    return caught.value.text


def gets(hub: Hub, at: str | None = None) -> int:
    return sum(one.method == "GET" and at in (None, one.at) for one in hub.requests)


class NoWait(threading.Event):
    """A stop event that records how long it was waited for and waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits_s.append(timeout)
        return self.is_set()


PASSING = {
    "cut": (Fault(cut_bytes=900), "the connection to 127.0.0.1"),
    "reset": (Fault(cut_bytes=900, reset=True), "the connection to 127.0.0.1"),
    "reset at once": (Fault(drop=True, reset=True), "the connection to 127.0.0.1"),
    "closed without a word": (Fault(drop=True), "the connection to 127.0.0.1"),
    "silent": (Fault(mute=True), "sent nothing for 0.3 s"),
    "stalled": (Fault(stall_bytes=500), "sent nothing for 0.3 s"),
    "trickle": (Fault(trickle_s=0.02), "bytes came in 0."),
    "short": (
        Fault(cut_bytes=900, headers={"Content-Length": "900"}),
        "the answer ended after",
    ),
    "short chunks": (Fault(cut_bytes=900, chunked=True), "the answer ended after"),
    "another range": (Fault(shift_bytes=1), "the answer's Content-Range is 'bytes 11-"),
    "another total": (
        Fault(headers={"Content-Range": f"bytes 10-{len(CONTENT) - 11}/7"}),
        "the answer's Content-Range is",
    ),
    "no range": (Fault(headers={"Content-Range": None}), "the answer's Content-Range is 'none'"),
    "too long": (Fault(extra_bytes=5), "the answer's Content-Length is '299985'"),
    "416": (Fault(status=416), "HTTP 416"),
    "408": (Fault(status=408), "HTTP 408"),
    "429": (Fault(status=429), "HTTP 429"),
    "500": (Fault(status=500), "HTTP 500"),
    "502": (Fault(status=502), "HTTP 502"),
    "503": (Fault(status=503), "HTTP 503"),
    "504": (Fault(status=504), "HTTP 504"),
    "lost redirect": (Fault(status=302, headers={"Location": "http://a:b"}), "redirects to no"),
}
SLOW = ("silent", "stalled", "trickle")
BOTH = pytest.mark.parametrize("site", ["hub", "cdn_hub"])


def patience(name: str) -> dict[str, Any]:
    """Little only where it is what ends the attempt: a busy machine must not look like a stall."""
    return {"stall_s": 0.3} if name in SLOW else {}


@BOTH
@pytest.mark.parametrize("name", PASSING)
def test_a_trouble_that_passes_costs_one_more_request_and_no_byte(
    site: str, name: str, request: pytest.FixtureRequest
) -> None:
    hub: Hub = request.getfixturevalue(site)
    fault, _ = PASSING[name]
    hub.faults.add(altered(fault, at=site.partition("_")[0]))
    source = source_of(hub, **patience(name))
    assert source.read(file_of(), 10, len(CONTENT) - 10) == CONTENT[10:-10]
    # through a CDN each request is two, as the address that failed is not used again
    assert gets(hub) == (2 if site == "hub" else 4)


@pytest.mark.parametrize("name", PASSING)
def test_a_trouble_that_stays_ends_after_the_attempts_in_one_sentence(hub: Hub, name: str) -> None:
    fault, words = PASSING[name]
    hub.faults.add(altered(fault, times=None))
    source = source_of(hub, **patience(name))
    text = sentence(lambda: source.read(file_of(), 10, len(CONTENT) - 10))
    assert words in text and "3 times in a row" in text
    assert f"{FILE} of {REPO}@{COMMIT}" in text
    assert gets(hub) == 3


AT_ONCE = {
    "whole file": (Fault(whole=True), "with the whole of"),
    "packed": (Fault(headers={"Content-Encoding": "gzip"}), "encoded as gzip"),
    "not modified": (Fault(status=304), "HTTP 304"),
    "401": (Fault(status=401), "set HF_TOKEN"),
    "gated": (Fault(status=403, code="GatedRepo"), "accept its licence"),
    "403": (Fault(status=403), "set HF_TOKEN"),
    "no model": (Fault(status=404, code="RepoNotFound"), "check --model-id"),
    "hidden model": (Fault(status=401, code="RepoNotFound"), "check --model-id"),
    "no revision": (Fault(status=404, code="RevisionNotFound"), "check --revision"),
    "no file": (Fault(status=404, code="EntryNotFound"), f"has no file {FILE}"),
    "smaller": (Fault(status=416, headers={"Content-Range": "bytes */7"}), "7 bytes now"),
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_what_cannot_pass_is_told_after_one_request(hub: Hub, name: str) -> None:
    fault, words = AT_ONCE[name]
    hub.faults.add(altered(fault, times=None))
    text = sentence(lambda: source_of(hub).read(file_of(), 0, 100))
    assert words in text and (name != "whole file" or "--whole-files" in text)
    assert gets(hub) == 1


@pytest.mark.parametrize(
    ("repo_id", "commit", "name", "words"),
    [
        ("org/other", COMMIT, FILE, "check --model-id"),
        (REPO, "f" * 40, FILE, "check --revision"),
        (REPO, COMMIT, "none.safetensors", "has no file none.safetensors"),
    ],
)
def test_what_is_not_there_is_told_after_one_request(
    hub: Hub, repo_id: str, commit: str, name: str, words: str
) -> None:
    assert words in sentence(lambda: source_of(hub, repo_id, commit).describe(name))
    assert hub.asked == [f"HEAD {name}"]


def test_describe_asks_again_what_may_pass(hub: Hub) -> None:
    hub.faults.add(Fault(method="HEAD", status=503), Fault(method="HEAD", drop=True))
    assert source_of(hub).describe(FILE).size_bytes == len(CONTENT)
    hub.faults.add(Fault(method="HEAD", status=500, times=None))
    assert "HTTP 500, 3 times in a row" in sentence(lambda: source_of(hub).describe(FILE))


def test_bytes_are_kept_when_the_answer_goes_on_after_them(hub: Hub) -> None:
    hub.faults.add(Fault(chunked=True, extra_bytes=100), Fault(chunked=True, stall_bytes=1000))
    source = source_of(hub, attempts=1)
    assert source.read(file_of(), 5, 1005) == CONTENT[5:1005]
    assert source.read(file_of(), 5, 1005) == CONTENT[5:1005]
    assert gets(hub) == 2


def test_progress_makes_up_for_failures(hub: Hub) -> None:
    hub.faults.add(Fault(cut_bytes=10_000, times=None))
    assert source_of(hub).read(file_of(), 0, len(CONTENT)) == CONTENT
    assert (gets(hub), hub.sent_bytes()) == (len(CONTENT) // 10_000, len(CONTENT))
    hub.forget()
    slow = source_of(hub, progress_bytes=50_000)
    assert "3 times in a row" in sentence(lambda: slow.read(file_of(), 0, len(CONTENT)))


@pytest.mark.parametrize("status", [302, 307, 308])
def test_the_token_reaches_the_hub_and_no_other_host(
    cdn_hub: Hub, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    cdn_hub.redirect_status = status
    cdn_hub.moved["org/old"] = REPO  # a redirect that is relative, and stays on the hub
    source = source_of(cdn_hub, "org/old")
    file = source.describe(FILE)
    assert source.read(file, 7, 1007) == CONTENT[7:1007]
    sent = {(one.at, one.headers.get("authorization")) for one in cdn_hub.requests}
    assert sent == {("hub", "Bearer hf_secret"), ("cdn", None)}


def test_a_chain_of_redirects_ends(hub: Hub) -> None:
    round_about = {"Location": f"/{REPO}/resolve/{COMMIT}/{FILE}"}
    hub.faults.add(Fault(status=307, headers=round_about, times=None))
    text = sentence(lambda: source_of(hub, attempts=1, redirects=4).read(file_of(), 0, 9))
    assert "more than 4 redirects" in text and gets(hub) == 5


def test_a_signed_address_is_used_until_it_expires_and_then_asked_for_anew(
    cdn_hub: Hub,
) -> None:
    cdn_hub.signature_uses = 2
    source = source_of(cdn_hub)
    read = b"".join(source.read(file_of(), n, n + 1000) for n in range(0, 6000, 1000))
    assert read == CONTENT[:6000]
    # six ranges, and two that found the address too old
    assert (gets(cdn_hub, "hub"), gets(cdn_hub, "cdn")) == (3, 8)


def test_a_storage_host_that_refuses_a_fresh_address_is_named(cdn_hub: Hub) -> None:
    cdn_hub.signature_uses = 0
    text = sentence(lambda: source_of(cdn_hub).read(file_of(), 0, 9))
    assert cdn_hub.cdn_endpoint.removeprefix("http://") in text and "HTTP 403" in text
    assert "signature" not in text and gets(cdn_hub) == 2


@pytest.mark.parametrize("etag", ['W/"abc"', '"abc"', '"abc-gzip"', 'W/"abc-gzip"', "abc"])
def test_an_etag_is_the_same_however_it_is_written(hub: Hub, etag: str) -> None:
    headers: dict[str, str | None] = {"ETag": etag}
    if "gzip" in etag:
        headers["Content-Length"] = "77"  # as packed
    hub.faults.add(Fault(method="HEAD", headers=headers))
    hub.faults.add(Fault(headers={"ETag": '"abc"'}, times=None))
    source = source_of(hub)
    file = source.describe(FILE)
    assert file == HubFile(FILE, len(CONTENT), "abc")
    assert source.read(file, 0, 9) == CONTENT[:9]


@BOTH
def test_a_file_that_changes_under_way_is_refused(
    site: str, request: pytest.FixtureRequest
) -> None:
    hub: Hub = request.getfixturevalue(site)
    source = source_of(hub)
    file = source.describe(FILE)
    last = site.partition("_")[0]
    hub.faults.add(Fault(at=last, skip=1, times=None, headers={"ETag": '"' + "0" * 32 + '"'}))
    assert source.read(file, 0, 9) == CONTENT[:9]
    text = sentence(lambda: source.read(file, 9, 18))
    assert "is not the same file any more" in text and "0" * 32 in text


def test_a_file_that_changes_after_it_was_described_is_refused(hub: Hub, cdn_hub: Hub) -> None:
    for one in (hub, cdn_hub):
        source = source_of(one)
        file = source.describe(FILE)
        one.etags[FILE] = '"' + "0" * 64 + '"'
        assert "0" * 64 in sentence(lambda: source.read(file, 0, 9))  # noqa: B023 - called here


def test_a_head_that_says_little_is_made_up_for(hub: Hub) -> None:
    bare: dict[str, str | None] = {"ETag": None, "Accept-Ranges": None, "Content-Length": None}
    hub.faults.add(Fault(method="HEAD", headers=bare), Fault(method="HEAD", status=405))
    source = source_of(hub)
    for _ in range(2):
        assert source.describe(FILE) == file_of()
    assert source.read(file_of(), 0, 9) == CONTENT[:9]
    # What is asked, not what is sent: the byte after the headers may find its reader gone.
    ranges = [asked.range for asked in hub.requests if asked.method == "GET"]
    assert ranges == ["bytes=0-0", "bytes=0-0", "bytes=0-8"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "20"},
        {
            "Retry-After": "Wed, 21 Oct 2015 07:28:20 GMT",
            "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
        },
        {"RateLimit": '"resolvers";r=0;t=20'},
    ],
)
def test_the_hub_is_given_the_time_that_it_asks_for(hub: Hub, headers: dict[str, str]) -> None:
    hub.faults.add(Fault(status=429, headers=headers))
    stop = NoWait()
    assert b"".join(source_of(hub).stream(file_of(), 0, 9, stop)) == CONTENT[:9]
    assert stop.waits_s == [20.0]


def test_a_wait_that_is_too_long_is_told_at_once(hub: Hub) -> None:
    hub.faults.add(Fault(status=429, headers={"Retry-After": "3600"}, times=None))
    text = sentence(lambda: source_of(hub).read(file_of(), 0, 9))
    assert "3600 s" in text and "300 s" in text and gets(hub) == 1


def test_waits_grow_and_are_bounded(hub: Hub) -> None:
    hub.faults.add(Fault(status=503, times=None))
    stop = NoWait()
    source = source_of(hub, attempts=8, first_delay_s=1.0, longest_delay_s=10.0)
    stream = source.stream(file_of(), 0, 9, stop)
    sentence(lambda: list(stream))
    full = [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert len(stop.waits_s) == 7
    assert all(
        most / 2 <= (seen or 0) <= most for seen, most in zip(stop.waits_s, full, strict=True)
    )


@pytest.mark.parametrize(
    "fault",
    [
        Fault(stall_bytes=50_000, times=None),
        Fault(mute=True, times=None),
        Fault(status=503, times=None),
    ],
    ids=["in a body", "before an answer", "between attempts"],
)
def test_a_stream_ends_at_once_when_it_is_stopped(hub: Hub, fault: Fault) -> None:
    hub.faults.add(fault)
    source = source_of(hub, stall_s=60.0, first_delay_s=60.0, longest_delay_s=60.0)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(lambda: list(source.stream(file_of(), 0, len(CONTENT), stop)))
        hub.wait_for(lambda: bool(hub.requests) and hub.sent_bytes() >= (fault.stall_bytes or 0))
        stop.set()
        source.interrupt()
        with pytest.raises(FetchStopped):
            result.result(timeout=10)
    with pytest.raises(FetchStopped):
        source.describe(FILE)


def test_a_stream_looks_at_its_stop_between_chunks(hub: Hub) -> None:
    stop = threading.Event()
    stream = source_of(hub).stream(file_of(), 0, len(CONTENT), stop)
    assert next(stream)[:9] == CONTENT[:9]
    stop.set()
    with pytest.raises(FetchStopped):
        next(stream)


def test_a_stream_that_is_left_closes_its_connection(hub: Hub) -> None:
    hub.faults.add(Fault(stall_bytes=1000))
    stream = source_of(hub).stream(file_of(), 0, len(CONTENT), threading.Event())
    assert next(stream)[:9] == CONTENT[:9]
    stream.close()  # type: ignore[attr-defined]


def test_several_threads_share_a_source_and_each_gets_its_own_bytes(cdn_hub: Hub) -> None:
    cdn_hub.signature_uses = 5
    cdn_hub.faults.add(*(Fault(skip=n, cut_bytes=1500) for n in range(0, 60, 3)))
    source = source_of(cdn_hub)
    with ThreadPoolExecutor(4) as pool:
        starts = range(0, len(CONTENT), 10_000)
        parts = pool.map(lambda n: source.read(file_of(), n, n + 10_000), starts)
        assert b"".join(parts) == CONTENT


def test_an_unreachable_hub_is_told_with_its_address(hub: Hub) -> None:
    gone = Hub(endpoint=hub.endpoint)
    with serve_hub(Hub()) as closed:
        gone.endpoint = closed.endpoint
    for act in (
        lambda: source_of(gone).describe(FILE),
        lambda: source_of(gone).read(file_of(), 0, 9),
    ):
        text = sentence(act)
        assert gone.endpoint.removeprefix("http://") in text
        assert "Connection refused" in text and "HTTPS_PROXY" in text and "3 times" in text


def test_offline_nothing_is_asked(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    source = source_of(hub)
    assert "HF_HUB_OFFLINE" in sentence(lambda: source.describe(FILE))
    assert "HF_HUB_OFFLINE" in sentence(lambda: source.read(file_of(), 0, 9))
    assert hub.asked == []


def test_a_proxy_is_used_where_one_is_set(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    close_session()
    source = HubSource(REPO, COMMIT, "http://hub.invalid", limits=QUICK)
    file = source.describe(FILE)
    assert source.read(file, 0, 9) == CONTENT[:9]
    assert {one.path.partition("/org/")[0] for one in hub.requests} == {"http://hub.invalid"}


def test_a_huge_file_is_read_where_it_is_asked(hub: Hub, model: Path) -> None:
    size_bytes = 40 << 30
    with (model / FILE).open("r+b") as file:
        file.truncate(size_bytes)
        file.seek(size_bytes - 3)
        file.write(b"end")
    source = source_of(hub)
    found = source.describe(FILE)
    assert found.size_bytes == size_bytes
    assert source.read(found, 3, 9) + source.read(found, size_bytes - 9, size_bytes) == (
        CONTENT[3:9] + bytes(6) + b"end"
    )
    assert hub.sent_bytes() == 15
