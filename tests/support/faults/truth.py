"""What is wrong in each kind of broken run: written by hand, from what was done to it.

Nothing here comes from the product. `phase` is what the stage was doing; `serving` stands for any
op where the harm is not done within a certain one.
"""

from __future__ import annotations

from typing import NamedTuple


class Truth(NamedTuple):
    """Whose trouble it is, what that stage was doing, and the id of the cause."""

    stage: int | None
    host: str
    phase: str
    cause: str


TRUTH: dict[str, Truth] = {
    # Starting the worker's program.
    "python_missing": Truth(1, "beta", "connecting", "python_missing"),
    "python_not_allowed": Truth(1, "beta", "connecting", "program_not_allowed"),
    "old_python": Truth(1, "local", "connecting", "python_too_old"),
    "bashrc_exits": Truth(1, "beta", "connecting", "login_ended"),
    "much_login_noise": Truth(1, "beta", "connecting", "login_noise"),
    "login_never_ends": Truth(1, "beta", "connecting", "no_first_message"),
    "other_protocol": Truth(1, "local", "connecting", "version_mismatch"),
    "killed_before_hello": Truth(1, "local", "connecting", "killed"),
    # The way to a host.
    "host_key_unknown": Truth(1, "{sshd}", "connecting", "host_key_unknown"),
    "host_key_changed": Truth(1, "{sshd}", "connecting", "host_key_changed"),
    "login_refused": Truth(1, "{sshd}", "connecting", "login_refused"),
    "connection_refused": Truth(1, "{closed}", "connecting", "connection_refused"),
    "blackhole": Truth(1, "{mute}", "connecting", "host_silent"),
    "no_route": Truth(1, "192.0.2.1", "connecting", "no_route"),
    "name_unknown": Truth(1, "gpu1.invalid", "connecting", "name_unresolved"),
    "session_lost": Truth(1, "{sshd}", "serving", "link_lost"),
    "ssh_client_killed": Truth(1, "beta", "serving", "link_lost"),
    # Loading.
    "stuck_load": Truth(1, "local", "loading", "start_too_slow"),
    "load_memory_error": Truth(1, "local", "loading", "memory_exhausted"),
    "load_defect": Truth(1, "local", "loading", "python_error"),
    "load_raises": Truth(1, "local", "loading", "load_error"),
    "oom_killed_loading": Truth(1, "local", "loading", "memory_killed"),
    "torch_missing": Truth(1, "local", "loading", "package_missing"),
    "memory_refused": Truth(1, "local", "loading", "memory_refused"),
    "model_folder_missing": Truth(1, "beta", "loading", "model_not_found"),
    "architecture_unknown": Truth(1, "beta", "loading", "model_unsupported"),
    "weights_truncated": Truth(1, "beta", "loading", "weights_damaged"),
    "lfs_pointer": Truth(1, "beta", "loading", "weights_damaged"),
    "hub_refuses": Truth(0, "local", "loading", "hub_access_refused"),
    "hub_has_no_model": Truth(0, "local", "loading", "model_not_found"),
    "hub_down": Truth(0, "local", "loading", "hub_unreachable"),
    "cache_disk_full": Truth(0, "local", "loading", "disk_full"),
    "cache_damaged": Truth(0, "local", "loading", "cache_damaged"),
    "cache_rotten": Truth(0, "local", "serving embed_and_forward", "not_finite"),
    # Serving: the process ends.
    "oom_killed": Truth(1, "local", "serving forward_range", "memory_killed"),
    "oom_killed_over_ssh": Truth(1, "beta", "serving forward_range", "memory_killed"),
    "killed_by_someone": Truth(1, "beta", "serving", "killed"),
    "killed_local": Truth(0, "local", "serving", "killed"),
    "terminated_by_someone": Truth(1, "beta", "serving", "asked_to_end"),
    "broken_heap": Truth(1, "local", "serving forward_range", "aborted"),
    "segfault": Truth(0, "local", "serving decode_step", "native_crash"),
    "bus_error": Truth(2, "local", "serving forward_and_sample", "bus_error"),
    "exits_with_7": Truth(1, "local", "serving forward_range", "exited"),
    # Serving: the process lives.
    "line_on_stdout": Truth(1, "local", "serving forward_range", "noise_on_stdout"),
    "wrong_answer": Truth(0, "local", "serving", "protocol_violation"),
    "stuck_op": Truth(2, "local", "serving forward_and_sample", "op_stuck"),
    "stopped_worker": Truth(1, "beta", "serving", "silent"),
    "context_full": Truth(1, "local", "serving forward_range", "context_full"),
    "device_full": Truth(2, "local", "serving forward_and_sample", "op_out_of_memory"),
    "op_defect": Truth(0, "local", "serving decode_step", "op_error"),
    "not_finite": Truth(1, "local", "serving forward_and_sample", "not_finite"),
    # No failure, but worth saying.
    "slow_stage": Truth(1, "local", "serving forward_range", "slow_stage"),
    "clock_off": Truth(1, "local", "", "clock_off"),
    # The orchestrator and its bundle.
    "orchestrator_killed": Truth(None, "", "", "no_end"),
    "orchestrator_terminated": Truth(None, "", "", "interrupted"),
    "ctrl_c": Truth(None, "", "", "interrupted"),
    "prompt_refused": Truth(None, "", "", "usage"),
    "bundle_disk_full": Truth(None, "", "", "bundle_unwritable"),
    "bundle_cut": Truth(1, "local", "serving forward_range", "native_crash"),
    "bundle_of_the_future": Truth(1, "local", "serving forward_range", "native_crash"),
    # Lost and brought back, or not.
    "lost_for_good": Truth(1, "local", "serving forward_range", "native_crash"),
    "recovered_kill": Truth(1, "beta", "serving", "killed"),
    "recovered_crash": Truth(1, "local", "serving forward_range", "native_crash"),
}

# Of these the diagnosis speaks, but names nothing as at fault.
NOTES = (
    "slow_stage",
    "clock_off",
    "ctrl_c",
    "orchestrator_terminated",
    "recovered_kill",
    "recovered_crash",
)

# Nothing is wrong with these; nothing must be said of them.
HEALTHY = (
    "two_stages",
    "one_stage",
    "eight_stages",
    "equally_slow_stages",
    "slow_to_start",
    "sampled",
    "json_answer",
    "long_answer",
    "a_little_login_noise",
    "over_real_ssh",
    "even_split_model",
    "one_token",
)
