"""The plan: which stage runs where, with which layers and options, and what is said aloud."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.hosts import HostEntry, parse_hosts
from orchestrator.layer_count import STUB_LAYERS, ModelUnreadable, count_layers, layers_of
from orchestrator.layer_plan import PlanError
from orchestrator.plan import Plan, Ways, make_plan
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.transport.ssh import SshTarget
from worker.backends.stub import NUM_LAYERS

WAYS = Ways(hosts_name="hosts.txt", cores=8)


def model_of(tmp_path: Path, config: Any) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def plan_of(hosts: str, model_id: str | None = None, **options: Any) -> Plan:
    worker = WorkerOptions(model_id=model_id, stub=model_id is None, **options)
    return make_plan(parse_hosts(hosts.encode()), worker, WAYS)


def layers(plan: Plan) -> list[tuple[str, tuple[int, int] | None]]:
    return [(spec.host, spec.layers) for spec in plan.specs]


def test_each_kind_of_host_becomes_its_kind_of_stage() -> None:
    plan = plan_of(
        "local device=cpu env.HF_HOME=/data\n"
        "alice@gpu1:2222 python=/opt/bin/python quantization=nf4 memory=2GiB\n"
        "command=\"kubectl exec -i 'llm 0' --\"\n"
        "spare gpu9\n",
        quantization="int8",
        max_context=100,
    )
    common = {"max_context": 100, "stub": True}
    assert plan.specs == (
        StageSpec(
            stage=0,
            num_stages=3,
            environment={"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "8", "HF_HOME": "/data"},
            options=WorkerOptions(quantization="int8", device="cpu", threads=8, **common),
        ),
        StageSpec(
            stage=1,
            num_stages=3,
            host="alice@gpu1:2222",
            transport="ssh",
            ssh=SshTarget("gpu1", "alice", 2222),
            python="/opt/bin/python",
            environment={"OMP_WAIT_POLICY": "passive"},
            options=WorkerOptions(
                quantization="nf4", memory_limit_bytes=2 * 2**30, lease_s=60.0, **common
            ),
        ),
        StageSpec(
            stage=2,
            num_stages=3,
            host="kubectl exec -i 'llm 0' --",
            transport="command",
            command=("kubectl", "exec", "-i", "llm 0", "--"),
            environment={"OMP_WAIT_POLICY": "passive"},
            options=WorkerOptions(quantization="int8", lease_s=60.0, **common),
        ),
    )
    assert plan.notes == ("spare host gpu9 is kept aside until a stage is lost",)


@pytest.mark.parametrize(("slots", "threads"), [(1, 8), (3, 2), (9, 1)])
def test_local_workers_share_the_cores(slots: int, threads: int) -> None:
    plan = plan_of(f"local slots={slots}\n")
    assert {spec.options.threads for spec in plan.specs} == {threads}
    assert plan_of("local\n", threads=5).specs[0].options.threads == 5


def test_local_workers_keep_the_python_path_and_others_do_not_get_it() -> None:
    ways = Ways(cores=2, python_path="/opt/torch")
    plan = make_plan(parse_hosts(b"local\ngpu1\n"), WorkerOptions(stub=True), ways)
    assert [spec.environment.get("PYTHONPATH") for spec in plan.specs] == ["/opt/torch", None]


def test_without_wishes_the_workers_split_the_layers_themselves() -> None:
    assert layers(plan_of("local\na\n")) == [("local", None), ("a", None)]


def test_wishes_are_kept_and_the_others_share_the_rest_in_file_order() -> None:
    plan = plan_of("a\nb layers=60:128\nc\nd layers=0:20\n")
    assert layers(plan) == [("d", (0, 20)), ("a", (20, 40)), ("c", (40, 60)), ("b", (60, 128))]
    assert [(spec.stage, spec.num_stages) for spec in plan.specs] == [(i, 4) for i in range(4)]


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (
            "a layers=0:8\nb layers=7:128\n",
            "hosts.txt:2: layers=7:128 overlaps layers=0:8 of hosts",
        ),
        ("a layers=0:129\n", "hosts.txt:1: layers=0:129 goes beyond the model, which has 128"),
        ("a layers=0:8\n", "hosts.txt:1: beside layers=0:8, layers 8:128 of 0:128 are on no"),
        ("a layers=8:9\nb\n", "hosts.txt:1: beside layers=8:9, layers 9:128 of 0:128 are on no"),
        ("a\nb env.HF_TOKEN=hf_x\n", "hosts.txt:2: env.HF_TOKEN= would be readable"),
    ],
)
def test_what_does_not_fit_is_one_sentence(hosts: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(hosts)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("wish", ["", " layers=0:1"])
def test_stages_beyond_the_layers_are_left_out_aloud(tmp_path: Path, wish: str) -> None:
    model = model_of(tmp_path, {"num_hidden_layers": 3})
    plan = plan_of(f"a{wish}\nb slots=3\nc\n", model)
    assert [spec.host for spec in plan.specs] == ["a", "b", "b"]
    assert plan.notes == (
        "1 of 3 stages of hosts.txt:2 (b) left out: there are more stages than layers for them",
        "hosts.txt:3 (c) left out: there are more stages than layers for them",
    )


@pytest.mark.parametrize(
    ("hosts", "is_told"),
    [
        ("local slots=16\n", False),
        ("local slots=17 device=cuda\n", False),
        ("b slots=17\n", False),
        ("local slots=17\nb\n", True),
    ],
)
def test_many_stages_on_few_cores_are_told(tmp_path: Path, hosts: str, is_told: bool) -> None:
    model = model_of(tmp_path, {"num_hidden_layers": 30})
    words = (
        "17 stages on 8 cores of local: they take turns, each has the libraries in memory once "
        "more (some 350 MiB), and more than 8 stages there make no answer faster"
    )
    assert plan_of(hosts, model).notes == ((words,) if is_told else ())


def test_local_n_is_n_stages() -> None:
    plan = make_plan([HostEntry(line=0, slots=2)], WorkerOptions(stub=True), Ways(cores=2))
    assert [spec.host for spec in plan.specs] == ["local", "local"]


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"num_hidden_layers": 30}, 30),
        ({"n_layer": 12}, 12),
        ({"num_layers": 6}, 6),
        ({"n_layers": 7}, 7),
        ({"text_config": {"num_hidden_layers": 26}, "num_hidden_layers": 99}, 26),
        ({"text_config": {}, "n_layer": 4}, 4),
        ({"num_hidden_layers": True}, None),
        ({"num_hidden_layers": 0}, None),
        ({"num_hidden_layers": "30"}, None),
        ([], None),
    ],
)
def test_the_number_of_layers_is_read_from_the_config(config: Any, count: int | None) -> None:
    assert layers_of(config) == count


def test_a_config_that_does_not_tell_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="does not tell how many layers"):
        count_layers(model_of(tmp_path, {}), None)
    for text in ("{", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelUnreadable, match="is not JSON"):
            count_layers(str(tmp_path), None)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelUnreadable, match="is it a model folder"):
        count_layers(str(tmp_path), None)


def test_the_stub_has_the_layers_that_the_plan_counts_on() -> None:
    assert STUB_LAYERS == NUM_LAYERS


def test_a_spare_starts_a_lost_stage_as_it_was_with_the_ways_of_its_own() -> None:
    plan = plan_of(
        "a quantization=nf4 memory=2GiB device=cuda:1\n"
        "b\n"
        "spare me@c:2222 slots=2 python=/opt/python memory=8GiB quantization=int8\n",
        max_context=100,
        threads=6,
    )
    assert [slot.host for slot in plan.spares] == ["me@c:2222"] * 2
    lost = replace(plan.specs[0], layers=(0, 9))
    moved = plan.spares[0].spec_for(lost)
    assert (moved.host, moved.ssh, moved.python) == (
        "me@c:2222",
        SshTarget("c", "me", 2222),
        "/opt/python",
    )
    assert (moved.stage, moved.num_stages, moved.layers) == (0, 2, (0, 9))
    # What decides bits is the lost stage's, what the host has is its own.
    assert moved.options == replace(lost.options, device=None, memory_limit_bytes=8 * 2**30)
