"""What every test gets: quiet thread counts, the demo model on request, and no leaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import schedule
from tests.support.leaks import Belongings, descendants_of_run, mark_run
from tools.demo_model import default_dir, demo_model

# Before anything imports torch: several model processes share the machine, and OpenMP threads
# that spin while they wait starve the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
RUN_MARK = mark_run()

settings.register_profile(
    "stageline", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("stageline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow files; the workers of a run take files in this order."""
    items.sort(key=lambda item: schedule.rank(item.path))


@pytest.fixture(scope="session")
def demo_model_path() -> Path:
    """Return the folder of SmolLM2 135M Instruct in bf16, made on first use."""
    return demo_model(default_dir())


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a child process, a thread or a file descriptor behind."""
    before = Belongings.now()
    yield
    left = before.left_behind()
    assert not left, f"the test left behind: {'; '.join(left)}"


@pytest.fixture(autouse=True, scope="module")
def no_orphans() -> Iterator[None]:
    """Fail a module that leaves a process of any generation behind, whoever its parent is."""
    before = set(descendants_of_run(RUN_MARK))
    yield
    left = [text for pid, text in descendants_of_run(RUN_MARK).items() if pid not in before]
    assert not left, f"these processes outlived their tests: {'; '.join(left)}"
