"""Build the wheel, install it alone in a folder, and run both programs from there.

The folder stands before everything else on the path, so only what the wheel holds is tested; the
dependencies come from the interpreter that runs this.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "worker", "orchestrator")
TOP_LEVEL = {"worker", "orchestrator"}
NEEDED = (
    "worker/py.typed",
    "orchestrator/py.typed",
    "worker/model/verified.json",
    "orchestrator/setup/pins.json",
)
SUFFIXES = (".py", ".html", ".css", ".js", ".json")
STEP_TIMEOUT_S = 120


class SmokeError(Exception):
    """The wheel is not what it should be; the text says what is wrong."""


def run(command: Sequence[str], folder: Path, path: Path | None = None) -> str:
    """Run a command in ``folder`` and return its stdout. Raises: SmokeError when it fails."""
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STEP_TIMEOUT_S,
    )
    if done.returncode:
        shown = " ".join(command)
        raise SmokeError(f"`{shown}` ended with exit {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def build_wheel(scratch: Path) -> Path:
    """Build from a copy, so that no stale ``build`` folder of the checkout gets in."""
    copy = scratch / "source"
    copy.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(scratch)]
    if importlib.util.find_spec("setuptools"):
        command.append("--no-isolation")
    run([*command, str(copy)], scratch)
    shutil.rmtree(copy)
    return next(scratch.glob("*.whl"))


def check_contents(wheel: Path) -> None:
    """Check that the wheel holds both packages with their data, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    found = {name.split("/")[0] for name in names}
    extra = {name for name in found - TOP_LEVEL if not name.endswith(".dist-info")}
    if extra or not found >= TOP_LEVEL:
        raise SmokeError(f"{wheel.name} holds {sorted(found)}, expected {sorted(TOP_LEVEL)} alone")
    in_source = {
        str(path.relative_to(ROOT))
        for top in TOP_LEVEL
        for path in (ROOT / top).rglob("*")
        if path.suffix in SUFFIXES
    }
    lacking = sorted((in_source | set(NEEDED)) - names)
    if lacking:
        raise SmokeError(f"{wheel.name} lacks {', '.join(lacking)}; see package-data in pyproject")


def check_programs(installed: Path, folder: Path) -> None:
    """Run both programs from the installed wheel, then a stub model split in two."""
    python = [sys.executable, "-P"]
    where = "import worker, orchestrator; print(worker.__file__); print(orchestrator.__file__)"
    for line in run([*python, "-c", where], folder, installed).splitlines():
        if not Path(line).is_relative_to(installed):
            raise SmokeError(f"{line} was imported instead of the wheel's file in {installed}")
    scripts = installed / "bin"
    commands = (
        [*python, "-m", "worker", "--version"],
        [*python, "-m", "orchestrator", "--version"],
        [str(scripts / "orchestrator"), "--version"],
        [str(scripts / "stageline"), "--version"],
    )
    versions = {run(command, folder, installed).split()[-1] for command in commands}
    if len(versions) != 1:
        raise SmokeError(f"the programs name different versions: {sorted(versions)}")
    stub = [str(scripts / "orchestrator"), "run", "--stub", "--local", "2", "--prompt", "a b c"]
    text = run(stub, folder, installed)
    if not text.strip():
        raise SmokeError("the stub pipeline of two stages printed no text")
    print(f"wheel {versions.pop()}: both programs run; two stub stages said {text.strip()[:60]!r}")


def main() -> int:
    """Build and try the wheel; exit 1 with the reason when something is wrong."""
    with tempfile.TemporaryDirectory(prefix="stageline-wheel-") as scratch:
        folder = Path(scratch).resolve()
        try:
            wheel = build_wheel(folder)
            check_contents(wheel)
            installed = folder / "installed"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
            run([*pip, "--target", str(installed), str(wheel)], folder)
            check_programs(installed, folder)
        except SmokeError as error:
            print(f"wheel smoke: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
