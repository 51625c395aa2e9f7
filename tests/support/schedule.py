"""Which test files are begun first, so that no long one is left over for the end of a run."""

from __future__ import annotations

from pathlib import Path

# Those that take more than some 20 seconds where three run side by side. One that computes comes
# before one that mostly waits, so that the cores are neither idle nor fought for; the longest come
# first. All others keep their order, and come after these.
BEGUN_FIRST = (
    "integration/test_smollm2.py",  # computes, in three processes
    "chaos/test_recovery_matrix.py",
    "chaos/test_net_recovery.py",
    "chaos/test_net_links.py",
    "integration/test_survey.py",  # computes
    "chaos/test_net_hosts.py",
    "integration/test_slurm.py",
    "clients/test_lm_eval.py",  # computes
    "chaos/test_serve_load.py",
    "clients/test_structured.py",  # computes
    "integration/test_hub_worker.py",  # computes
    "chaos/test_stage_faults.py",
    "integration/test_run.py",
    "integration/test_quantize.py",  # computes
    "integration/test_setup.py",
    "integration/test_ssh_logins.py",
    "unit/test_costs.py",  # computes
    "chaos/test_scale.py",
    "integration/test_doctor.py",
    "integration/test_load_memory.py",  # computes
    "integration/test_plan_command.py",
    "integration/test_run_demo.py",  # computes
    "integration/test_ports.py",
    "integration/test_recovery_model.py",  # computes
    "integration/test_secrets.py",
    "integration/test_fetch_command.py",  # computes
    "integration/test_bench.py",
    "integration/test_steps.py",
)
_RANKS = {name: rank for rank, name in enumerate(BEGUN_FIRST)}


def rank(path: Path) -> int:
    """Return the place of a test file in the order of a run."""
    return _RANKS.get("/".join(path.parts[-2:]), len(_RANKS))
