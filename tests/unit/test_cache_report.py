"""What `orchestrator cache` prints: a table that fits a terminal, and what is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.cache_options import CacheOptions
from orchestrator.cache_report import entries_table, nothing_of, report
from worker.protocol.events import CacheEntry

ENTRY = CacheEntry(
    model_id="org/tiny",
    commit="0123456789abcdef",
    endpoint="https://hub",
    path="/w",
    layers="0:2 4:5",
    groups=("lm_head.weight", "model.embed_tokens.weight", "model.norm.bias", "model.norm.weight"),
    size_bytes=10**6,
)
NO_PARTS = replace(ENTRY, layers="", groups=())


def options(model_id: str | None = None, revision: str | None = None) -> CacheOptions:
    return CacheOptions(
        hosts=None,
        local=1,
        accept_new=False,
        ssh_command="ssh",
        start_timeout_s=None,
        cache_dir=None,
        cache_action="ls",
        model_id=model_id,
        revision=revision,
        json=False,
        repair=False,
        all=False,
    )


def test_groups_are_named_shortly() -> None:
    table = entries_table([("local", ENTRY)])
    assert table.headings == ("host", "model", "commit", "layers", ">size", "last used")
    assert table.rows == (
        (
            "local",
            "org/tiny",
            "01234567",
            "0:2 4:5 +lm_head +embed_tokens +norm",
            "1 MB",
            "1970-01-01",
        ),
    )


def test_layers_go_on_below_where_names_leave_no_room() -> None:
    long = replace(ENTRY, model_id="o/" + "m" * 38, partial_bytes=1)
    table = entries_table([("local", long)])
    assert [(row[0], row[3]) for row in table.rows] == [
        ("local", "0:2 4:5 +lm_head"),
        ("", "+embed_tokens"),
        ("", "+norm"),
    ]


@pytest.mark.parametrize(
    ("entry", "noted"),
    [(ENTRY, False), (NO_PARTS, True), (replace(NO_PARTS, partial_bytes=1), False)],
)
def test_headers_without_parts_point_to_the_cache_of_whole_files(
    entry: CacheEntry, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report(options(), [("local", [entry]), ("b", [entry])])
    assert capsys.readouterr().out.count("`hf cache ls` shows them") == noted


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (replace(options("o/typo"), cache_action="rm"), 3),
        (replace(options(), cache_action="rm", all=True), 0),
        (options("o/typo"), 0),
    ],
)
def test_only_a_removal_of_what_is_not_there_is_an_error(asked: CacheOptions, code: int) -> None:
    assert report(asked, [("local", ()), ("b", ())]) == code


@pytest.mark.parametrize(
    ("asked", "hosts", "sentence"),
    [
        (options(), ["local"], "no weights are kept here"),
        (options(), ["local", "b"], "no weights are kept there"),
        (options("o/m"), ["b"], "no weights of o/m are kept there"),
        (options("o/m", "c0ffee"), ["local"], "no weights of o/m at commit c0ffee are kept here"),
    ],
)
def test_nothing_is_told_with_what_was_asked_for(
    asked: CacheOptions, hosts: list[str], sentence: str
) -> None:
    assert nothing_of(asked, [(host, ()) for host in hosts]) == sentence
