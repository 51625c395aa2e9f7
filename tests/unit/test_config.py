"""What a worker is asked to be: the command line beats the environment, contradictions are told."""

from __future__ import annotations

import pytest

from worker.config import WorkerConfig, read_config, wait_passively
from worker.failures import LoadFailed, UsageError
from worker.protocol.exits import ExitCode
from worker.protocol.roles import StageIdentity
from worker.protocol.stage import StageSlice


def test_environment_of_the_reference_worker_is_enough() -> None:
    env = {"MODEL": "org/m", "STAGE": "1", "NUM_STAGES": "3"}
    assert read_config([], env) == WorkerConfig(model_id="org/m", stage=1, num_stages=3)


def test_command_line_beats_the_environment() -> None:
    env = {
        "MODEL": "org/other",
        "STAGE": "1",
        "NUM_STAGES": "3",
        "PP_WORKER_STUB": "0",
        "PP_DOWNLOAD_PROGRESS_INTERVAL_SECS": "5",
    }
    argv = "--model-id m --stage 0 --num-stages 2 --download-progress-s 1 --stub".split()
    assert read_config(argv, env) == WorkerConfig(
        model_id="m", stage=0, num_stages=2, download_progress_s=1.0, stub=True
    )


def test_every_option_reaches_the_config() -> None:
    argv = (
        "--model-id m --revision r --shard-start 2 --shard-end 5 --quantization nf4 "
        "--device cuda:1 --threads 3 --max-context 99 --nonce n --lease-s 6 --heartbeat-s 1.5 "
        "--memory-limit 1.5GiB --prefill-chunk 8 --max-sessions 4 --kv-budget 10MB --no-mmap "
        "--trust-remote-code"
    ).split()
    assert read_config(argv, {}) == WorkerConfig(
        model_id="m",
        revision="r",
        shard_start=2,
        shard_end=5,
        quantization="nf4",
        device="cuda:1",
        threads=3,
        max_context=99,
        nonce="n",
        lease_s=6.0,
        heartbeat_s=1.5,
        memory_limit_bytes=3 * 2**29,
        prefill_chunk=8,
        max_sessions=4,
        kv_budget_bytes=10_000_000,
        mmap=False,
        trust_remote_code=True,
    )


@pytest.mark.parametrize(
    ("argv", "env", "says"),
    [
        ("--stub", {}, ["no layers chosen", "STAGE", "--shard-start"]),
        ("--stub --stage 0", {}, ["--stage", "--num-stages"]),
        ("--stub", {"NUM_STAGES": "2"}, ["NUM_STAGES=2", "--stage"]),
        ("--stub --shard-start 0", {}, ["--shard-start", "--shard-end"]),
        (
            "--stub --shard-start 0 --shard-end 4",
            {"STAGE": "1"},
            ["STAGE=1", "--shard-start", "both given"],
        ),
        ("--stub --shard-start 4 --shard-end 4", {}, ["4:4"]),
        ("--stub --stage 2 --num-stages 2", {}, ["stage 2 of 2", "0 to 1"]),
        ("--stage 0 --num-stages 2", {}, ["--model-id", "MODEL", "--stub"]),
        ("--stub --num-stages 0", {}, ["--num-stages", "'0'"]),
        ("--stub", {"STAGE": "-1", "NUM_STAGES": "2"}, ["STAGE", "'-1'"]),
        ("--stub --memory-limit lots", {}, ["lots", "20GiB"]),
        ("--stub --device tpu", {}, ["tpu", "cuda"]),
        ("--stub --lease-s nan", {}, ["nan"]),
        ("--stub --heartbeat-s 1e300", {}, ["1e300", "seconds"]),
        (f"--stub --memory-limit {'9' * 400}GiB", {}, ["20GiB"]),
        ("--stub --threads 100000", {}, ["100000", "1024"]),
        ("--model-id= --stage 0 --num-stages 2", {}, ["--model-id", "MODEL", "--stub"]),
        ("--stub --bogus", {}, ["--bogus", "--help"]),
        ("", {"PP_WORKER_STUB": "maybe"}, ["PP_WORKER_STUB", "maybe"]),
    ],
)
def test_what_cannot_be_is_one_sentence(argv: str, env: dict[str, str], says: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(argv.split(), env)
    text = str(caught.value)
    assert "\n" not in text
    assert [word for word in says if word not in text] == []


def test_an_empty_variable_is_no_setting() -> None:
    env = {"STAGE": "", "NUM_STAGES": "", "PP_WORKER_STUB": "1"}
    argv = "--shard-start 0 --shard-end 4".split()
    assert read_config(argv, env) == WorkerConfig(stub=True, shard_start=0, shard_end=4)


def test_identity_follows_from_the_layers() -> None:
    by_stage = WorkerConfig(stub=True, stage=1, num_stages=3)
    by_shard = WorkerConfig(stub=True, shard_start=4, shard_end=6)
    assert by_stage.identity(10) == StageIdentity(StageSlice(3, 6, 10), 1, 3)
    assert by_shard.identity(10) == StageIdentity(StageSlice(4, 6, 10))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (WorkerConfig(stub=True, shard_start=4, shard_end=11), ["4:11", "0:10"]),
        (WorkerConfig(stub=True, stage=0, num_stages=11), ["10 layers", "11 stages"]),
    ],
)
def test_layers_the_model_does_not_have_are_a_usage_error(
    config: WorkerConfig, says: list[str]
) -> None:
    with pytest.raises(LoadFailed) as caught:
        config.identity(10)
    assert caught.value.code is ExitCode.USAGE
    assert [word for word in says if word not in caught.value.text] == []


def test_an_owner_is_whoever_gives_a_nonce_or_a_lease() -> None:
    whole = {"stub": True, "stage": 0, "num_stages": 1}
    read = [
        WorkerConfig(**whole, nonce="n").has_owner,
        WorkerConfig(**whole, lease_s=3.0).has_owner,
        WorkerConfig(**whole).has_owner,
    ]
    assert read == [True, True, False]


@pytest.mark.parametrize(
    ("given", "then"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")]
)
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(
    given: dict[str, str], then: str
) -> None:
    wait_passively(given)
    assert given == {"OMP_WAIT_POLICY": then}
