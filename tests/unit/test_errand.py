"""Errands: how a worker for one is started, when hosts are asked, and what is made of answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.benchmark.surveyed import readings_of
from orchestrator.errand_kind import ErrandKind
from orchestrator.failures import PipelineMismatch, ProtocolViolation
from orchestrator.hosts import parse_hosts
from orchestrator.layer_plan import PlanError
from orchestrator.placing import has_choice, placed_plan
from orchestrator.setting import Setting
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stage_specs import Ways
from orchestrator.survey import Survey, read_survey, survey_specs, surveyed_slots
from orchestrator.timeouts import Timeouts
from tests.support.peers.surveyed import COMMIT, MIB, RESIDENT_BYTES, costs
from worker.protocol.events import Event, HostSurveyed, ModelSurveyed


def setting_of(hosts: str, *, even_split: bool = False, **options: Any) -> Setting:
    worker = WorkerOptions(**{"model_id": "org/m", **options})
    ways = Ways(hosts_name="hosts.txt", cores=8)
    return Setting(parse_hosts(hosts.encode()), worker, ways, Timeouts(), even_split)


def told(machine: str, *, commit: str | None = COMMIT, gbps: float = 10) -> list[Event]:
    host = HostSurveyed(
        host="h",
        machine=machine,
        device="cpu",
        free_bytes=4000 * MIB,
        total_bytes=8000 * MIB,
        limit="memory",
        resident_bytes=RESIDENT_BYTES,
        read_gbps=gbps,
        disk_free_bytes=10**12,
        cache_path="/c",
        cached_groups={COMMIT: ["layers.0"]},
        cached_files={},
    )
    model = ModelSurveyed(
        model_id="org/m",
        commit=commit,
        model_type="t",
        max_context=256,
        prefill_chunk=256,
        fetched_bytes=0,
        elapsed_ms=1,
        costs=costs().to_fields(),
    )
    return [host, model]


def surveyed(setting: Setting, **changes: Any) -> Survey:
    specs = survey_specs(setting)
    return read_survey(setting, specs, [told(f"m{spec.stage}", **changes) for spec in specs])


def words(spec: StageSpec) -> list[str]:
    """The worker's own words on the command line, the nonce aside."""
    argv = spec.launch("N").argv
    own = argv[argv.index("worker") + 1 :]
    return [word for word in own if not word.startswith("--nonce=")]


def test_a_survey_has_no_layers_and_a_fetch_has() -> None:
    survey = StageSpec(stage=1, num_stages=2, options=WorkerOptions(only=ErrandKind.SURVEY))
    fetch = StageSpec(
        stage=1,
        num_stages=2,
        layers=(3, 5),
        options=WorkerOptions(
            only=ErrandKind.FETCH, cache_dir="/c", fetch_connections=2, whole_files=True
        ),
    )
    assert (words(survey), survey.title) == (["--only=survey"], "the worker on local")
    assert (words(fetch), fetch.title) == (
        [
            "--shard-start=3",
            "--shard-end=5",
            "--only=fetch",
            "--cache-dir=/c",
            "--fetch-connections=2",
            "--whole-files",
        ],
        "stage 1 on local",
    )


@pytest.mark.parametrize(
    ("hosts", "choice"),
    [
        ("local\n", False),
        ("gpu1\n", False),
        ("local slots=3\n", False),
        ("local\nlocal\nspare gpu1\n", False),
        ("local\nlocal layers=0:2\n", False),
        ("gpu1 layers=0:4\ngpu2 layers=4:8\n", False),
        ("local\ngpu1\n", True),
        ("gpu1 slots=2\n", True),
        ("gpu1\ngpu2 layers=0:2\n", True),
        ("local\nlocal quantization=int8\n", True),
        ("local device=cuda:0\nlocal device=cuda:1\n", True),
        ("local\nlocal memory=2GiB\n", True),
    ],
)
def test_hosts_are_asked_where_it_matters_who_gets_what(hosts: str, choice: bool) -> None:
    assert has_choice(setting_of(hosts)) == choice
    assert not has_choice(setting_of(hosts, even_split=True))
    assert not has_choice(setting_of(hosts, stub=True))


def test_lines_of_one_place_share_a_survey() -> None:
    hosts = (
        "gpu1 slots=4\ngpu1 layers=0:2 memory=2GiB\ngpu1 quantization=int8\n"
        "gpu1 device=cuda:1\nalice@gpu1\nlocal\nspare gpu2\n"
        'command="srun"\ncommand="srun"\n'
    )
    specs = survey_specs(setting_of(hosts, memory_limit_bytes=None))
    assert [(spec.host, spec.options.device) for spec in specs] == [
        ("gpu1", None),
        ("gpu1", "cuda:1"),
        ("alice@gpu1", None),
        ("local", None),
        ("srun", None),
        ("srun", None),
    ]
    assert {spec.options.memory_limit_bytes for spec in specs} == {None}
    assert [spec.options.threads for spec in specs if spec.host == "local"] == [8]


def test_the_model_is_looked_at_by_the_first_host_and_by_each_that_quantizes_it() -> None:
    hosts = "a\nb\nc quantization=int8\nd quantization=int8\ne\nb quantization=nf4\nb"
    specs = survey_specs(setting_of(hosts))
    asked = [(spec.host, str(spec.options.only)) for spec in specs]
    assert asked == [
        ("a", "survey"),
        ("b", "survey"),
        ("c", "survey"),
        ("d", "survey"),
        ("e", "survey-host"),
    ]


def test_a_host_that_lacks_what_an_earlier_one_has_is_named() -> None:
    setting = setting_of("a quantization=int8\nb quantization=int8\nc quantization=bfloat16")
    specs = survey_specs(setting)
    answers = [told(f"m{spec.stage}") for spec in specs]
    able = answers[0][1]
    assert isinstance(able, ModelSurveyed)
    able.costs["quantizations"]["int8"] = able.costs["quantizations"]["bfloat16"]
    del able.costs["unavailable"]["int8"]
    survey = read_survey(setting, specs, answers)
    with pytest.raises(PlanError, match=r"^hosts.txt:2 \(b\) cannot hold this model as int8: bits"):
        surveyed_slots(setting, survey)


@pytest.mark.parametrize("model_id", ["/m", "~/m", "./m", "tests"])
def test_a_folder_is_looked_at_on_every_host(model_id: str) -> None:
    setting = setting_of("a\nb\nb slots=2\nspare c", model_id=model_id)
    asked = [(spec.host, str(spec.options.only)) for spec in survey_specs(setting)]
    assert asked == [("a", "survey"), ("b", "survey")]


def other_size(fields: dict[str, Any]) -> None:
    fields["groups"]["layers.1"]["size_bytes"] += 1


@pytest.mark.parametrize(
    ("hosts", "model_id", "commit", "change"),
    [
        ("a\nb quantization=int8", "org/m", "d" * 40, lambda fields: None),
        ("a\nb quantization=int8", "org/m", COMMIT, other_size),
        ("a\nb", "/m", COMMIT, other_size),
    ],
)
def test_two_hosts_that_see_different_models_are_named(
    hosts: str, model_id: str, commit: str, change: Callable[[dict[str, Any]], None]
) -> None:
    setting = setting_of(hosts, model_id=model_id)
    host, model = told("m1", commit=commit)
    assert isinstance(model, ModelSurveyed)
    change(model.costs)
    with pytest.raises(PipelineMismatch, match=r"^a and b see different models as org/m: c{40} "):
        read_survey(setting, survey_specs(setting), [told("m0"), [host, model]])


def test_a_slot_is_its_line_and_what_its_host_told() -> None:
    setting = setting_of("a\nb layers=2:8 memory=2GiB\n")
    first, second = surveyed_slots(setting, surveyed(setting))
    assert (first.name, first.machine, first.layers, first.memory_limit_bytes) == (
        "hosts.txt:1",
        "m0",
        None,
        None,
    )
    assert (second.name, second.machine, second.layers, second.memory_limit_bytes) == (
        "hosts.txt:2",
        "m1",
        (2, 8),
        2 * 2**30,
    )
    assert first.cached_groups == {"layers.0"}


def test_of_a_folder_nothing_is_fetched() -> None:
    setting = setting_of("a\nb\n", model_id="/models/m")
    slots = surveyed_slots(setting, surveyed(setting, commit=None))
    assert {slot.cached_groups for slot in slots} == {frozenset(costs().groups)}
    plan = placed_plan(setting, surveyed(setting, commit=None))
    assert plan.placement is not None and plan.placement.download_bytes == 0
    assert [(s.options.model_id, s.options.revision) for s in plan.specs] == [
        ("/models/m", None)
    ] * 2


def test_every_stage_is_given_the_commit_that_was_surveyed() -> None:
    setting = setting_of("a\nb\nspare c\n", model_id="org/m@main")
    plan = placed_plan(setting, surveyed(setting))
    assert [(s.options.model_id, s.options.revision) for s in plan.specs] == [("org/m", COMMIT)] * 2
    assert [spec.layers for spec in plan.specs] == [(0, 4), (4, 8)]
    assert plan.notes[0] == "spare host c is kept aside until a stage is lost"


def test_without_a_choice_the_plan_is_the_split_that_a_run_makes() -> None:
    setting = setting_of("local slots=3\n")
    plan = placed_plan(setting, surveyed(setting))
    assert [spec.layers for spec in plan.specs] == [(0, 2), (2, 5), (5, 8)]


@pytest.mark.parametrize(
    ("hosts", "sentence"),
    [
        ("local memory=402MiB", "the model does not fit: only the first 2 of its 8 layers"),
        ("local memory=402MiB\nlocal memory=402MiB", "the model does not fit in even shares ("),
    ],
)
def test_a_model_that_does_not_fit_is_not_blamed_on_layers_that_nobody_gave(
    hosts: str, sentence: str
) -> None:
    setting = setting_of(hosts)
    with pytest.raises(PlanError) as caught:
        placed_plan(setting, surveyed(setting))
    assert str(caught.value).startswith(sentence)


def test_a_mistake_of_a_place_is_reported_with_its_line() -> None:
    with pytest.raises(PlanError, match=r"^hosts.txt:2: env.HF_TOKEN= would be readable"):
        survey_specs(setting_of("local\na env.HF_TOKEN=hf_x\na env.HF_TOKEN=hf_x\n"))


def test_an_even_split_that_parts_what_cannot_be_parted_says_where_it_can() -> None:
    setting = setting_of("local slots=3")
    host, model = told("m")
    assert isinstance(model, ModelSurveyed)
    model.costs["cuts"] = [3, 4]
    survey = read_survey(setting, survey_specs(setting), [[host, model]])
    with pytest.raises(PlanError) as caught:
        placed_plan(setting, survey)
    assert str(caught.value) == (
        "the even split of 3 stages parts the model at layer 2, where it cannot be parted (it can "
        "at: 3, 4); give layers= in a hosts file"
    )


def test_a_quantization_that_a_host_cannot_load_names_the_line() -> None:
    setting = setting_of("a\nb quantization=int8\n")
    with pytest.raises(PlanError) as caught:
        surveyed_slots(setting, surveyed(setting))
    assert str(caught.value) == (
        "hosts.txt:2 (b) cannot hold this model as int8: bitsandbytes is not installed; it can "
        "as: bfloat16"
    )


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([], "the worker on a ended well but told nothing of its host"),
        (told("m")[:1], "the worker on a ended well but told nothing of the model"),
    ],
)
def test_a_worker_that_tells_too_little_is_named(events: list[Event], sentence: str) -> None:
    setting = setting_of("a\n")
    with pytest.raises(ProtocolViolation) as caught:
        read_survey(setting, survey_specs(setting), [events])
    assert str(caught.value).startswith(sentence)


def test_stages_on_one_machine_share_its_threads_and_one_alone_has_them_all() -> None:
    setting = setting_of("a slots=2\nb\n", model_id="/models/m")
    specs = survey_specs(setting)
    survey = read_survey(setting, specs, [told(f"m{s.stage}", commit=None) for s in specs])
    hosts = {entry: replace(host, threads=8) for entry, host in survey.hosts.items()}
    survey = replace(survey, hosts=hosts)
    plan = placed_plan(setting, survey)
    assert [spec.options.threads for spec in plan.specs] == [4, 4, 8]
    asked = replace(setting, worker=replace(setting.worker, threads=3))
    assert [spec.options.threads for spec in placed_plan(asked, survey).specs] == [3, 3, 3]


@pytest.mark.parametrize(("threads", "num_notes"), [(None, 1), (1, 0)])
def test_a_host_with_many_stages_and_few_cores_is_told_of(
    threads: int | None, num_notes: int
) -> None:
    setting = setting_of("a slots=3\nb\n", model_id="/models/m", threads=threads)
    survey = surveyed(setting, commit=None)
    hosts = {entry: replace(host, threads=1) for entry, host in survey.hosts.items()}
    notes = placed_plan(setting, replace(survey, hosts=hosts)).notes
    assert sum(note.startswith("3 stages on 1 core of a: ") for note in notes) == num_notes


def test_workers_on_one_host_are_told_apart_by_their_lines() -> None:
    specs = survey_specs(setting_of("a\nlocal device=cpu\nlocal device=mps\n"))
    assert [spec.title for spec in specs] == [
        "the worker on a",
        "the worker on local (line 2)",
        "the worker on local (line 3)",
    ]


def test_a_bench_counts_the_weights_that_a_token_reads_on_each_stage_once() -> None:
    setting = setting_of("local slots=2\n")
    survey = surveyed(setting)
    plan = placed_plan(setting, survey)
    cost = costs().quantizations["bfloat16"]
    half = len(cost.layer_read_bytes) // 2
    layers = [sum(cost.layer_read_bytes[:half]), sum(cost.layer_read_bytes[half:])]
    wanted = [layers[0] + cost.first.read_bytes, layers[1] + cost.last.read_bytes]
    readings = readings_of(setting, survey, plan)
    assert [reading and reading.read_bytes for reading in readings] == wanted
    assert [reading and reading.memory_gbps for reading in readings] == [10, 10]
