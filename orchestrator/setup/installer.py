"""The installer's program on a host: a venv, pinned packages, our code. Its text is sent there.

It answers questions, one line of JSON each. Whatever it finds half-made it makes whole: the file
of STATE is written last, and says what was installed.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STATE = "stageline-setup.json"
ALIVE_S = 5.0
INSPECT_S = 120.0
# What pip says of its progress; the rest is of no use to who waits.
NEWS = ("Downloading ", "Installing collected", "Building wheel")
# Run by the venv's Python: which packages are there, as {name: version}.
INSPECT = (
    "import json, sys\n"
    "from importlib import metadata, util\n"
    "found = {d.metadata['Name'].lower().replace('_', '-'): d.version"
    " for d in metadata.distributions() if d.metadata['Name']}\n"
    "print(json.dumps({'version': sys.version_info[:2], 'packages': found,"
    " 'has_pip': util.find_spec('pip') is not None}))\n"
)


class Refusal(Exception):
    """Something is in the way; the text is a verb phrase behind the host's name."""


class Installer:
    """The venv of one user on this host.

    Args:
        nonce: begins each line that is told.
        wanted: what is to be there: `venv` (a folder below the home folder), `requires` (versions
            by canonical name), `constraints` (lines for pip), `code` (the wheel's SHA-256),
            `modules` to import at the end.
    """

    def __init__(self, nonce: str, wanted: dict[str, Any]) -> None:
        self._nonce = nonce
        self._wanted = wanted
        self._tell_lock = threading.Lock()
        self._pip: subprocess.Popen[str] | None = None
        try:
            self._venv = Path.home() / wanted["venv"]
        except RuntimeError:
            raise Refusal("has no home folder for this user; give it one (HOME)") from None
        self._python = self._venv / "bin" / "python"

    def tell(self, **fields: Any) -> None:
        """Write one line."""
        with self._tell_lock:
            sys.stdout.write(f"{self._nonce} {json.dumps(fields)}\n")
            sys.stdout.flush()

    def look(self) -> dict[str, Any]:
        """Return what is there and what there is to do."""
        found = self._inspect()
        packages = found["packages"] if found else {}
        lacking = self._lacking(packages)
        state = self._state()
        is_as_left = state.get("packages") == packages and state.get("wanted") == self._mark()
        todo = []
        if found is None:
            todo.append("venv")
        if lacking or not is_as_left:
            todo.append("packages")
        if todo or state.get("code") != self._wanted["code"]:
            todo.append("code")
        return {
            "todo": todo,
            "lacking": lacking,
            "is_broken": found is None and self._venv.exists(),
            "venv": str(self._venv),
            "packages": packages,
        }

    def install(self, wheel: bytes, wheel_name: str) -> dict[str, Any]:
        """Do what there is to do, and return what is there then."""
        if hashlib.sha256(wheel).hexdigest() != self._wanted["code"]:
            raise Refusal("got another wheel than was sent; run setup again")
        todo = self.look()["todo"]
        state = self._venv / STATE
        state.unlink(missing_ok=True)
        if "venv" in todo:
            self._make_venv()
        with self._scratch() as scratch:
            code = scratch / wheel_name
            code.write_bytes(wheel)
            if "packages" in todo:
                # Into a new venv all at once; pip takes code of the same version for the same.
                self._install_packages(scratch, code if "venv" in todo else None)
            if "code" in todo and "venv" not in todo:
                self.tell(step="installing stageline")
                self._run_pip("--no-deps", "--no-index", "--force-reinstall", str(code))
        self._try_imports()
        found = self._inspect()
        if found is None:
            raise Refusal("has a venv that does not run right after it was made; remove it")
        packages = found["packages"]
        half = state.with_name(f"{STATE}.{os.getpid()}")
        half.write_text(
            json.dumps({"packages": packages, "wanted": self._mark(), "code": self._wanted["code"]})
        )
        half.replace(state)
        return {"done": True, "venv": str(self._venv), "packages": packages}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one setup at a time change the venv."""
        self._venv.parent.mkdir(parents=True, exist_ok=True)
        with (self._venv.parent / "setup.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # As where two hosts have one home folder between them.
                self.tell(step="waiting for another setup of this home folder")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Yield an empty folder, always the same: a setup that was killed may have left it."""
        scratch = self._venv.with_name("setup.new")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def end(self) -> None:
        """Leave at once, and take pip along: nobody listens any more."""
        if self._pip is not None:
            with suppress(ProcessLookupError):  # It has just ended by itself.
                os.killpg(self._pip.pid, signal.SIGKILL)
        os._exit(1)

    def _mark(self) -> str:
        """Return what names the packages that are wanted."""
        parts = [self._wanted[name] for name in ("requires", "constraints")]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _state(self) -> dict[str, Any]:
        try:
            state = json.loads((self._venv / STATE).read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _inspect(self) -> dict[str, Any] | None:
        """Return what the venv has; None where it does not run, or has no pip."""
        try:
            done = subprocess.run(
                [self._python, "-I", "-c", INSPECT],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=INSPECT_S,
                check=True,
            )
            found: dict[str, Any] = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        is_usable = found["has_pip"] and tuple(found["version"]) == sys.version_info[:2]
        return found if is_usable else None

    def _lacking(self, packages: dict[str, str]) -> list[str]:
        """Return what is to be installed or exchanged, as `name==version`."""
        return [
            f"{name}=={version}"
            for name, version in self._wanted["requires"].items()
            if not is_version(packages.get(name, ""), version)
        ]

    def _make_venv(self) -> None:
        if importlib.util.find_spec("ensurepip") is None:
            name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
            raise Refusal(f"has {name} without ensurepip, which makes a venv")
        self.tell(step="making the venv")
        shutil.rmtree(self._venv, ignore_errors=True)
        self._run([sys.executable, "-m", "venv", str(self._venv)], "cannot make a venv")

    def _install_packages(self, scratch: Path, code: Path | None) -> None:
        constraints = scratch / "constraints.txt"
        constraints.write_text("\n".join(self._wanted["constraints"]) + "\n")
        self.tell(step="installing packages")
        exact = [f"{name}=={version}" for name, version in self._wanted["requires"].items()]
        self._run_pip("-c", str(constraints), *exact, *([str(code)] if code else []))

    def _run_pip(self, *words: str) -> None:
        quiet = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")
        command = [str(self._python), "-I", "-m", "pip", "install", *quiet, *words]
        self._run(command, "cannot install with pip")

    def _try_imports(self) -> None:
        self.tell(step="trying the packages")
        modules = ", ".join(self._wanted["modules"])
        command = [str(self._python), "-I", "-c", f"import {modules}"]
        self._run(command, "installed everything, but cannot import it")

    def _run(self, command: list[str], failure: str) -> None:
        """Run a program to its end, tell its news, and raise Refusal where it fails."""
        last = first_error = ""
        # A group of its own, so that the build processes of pip end with it.
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=pip_environment(),
            start_new_session=True,
        ) as self._pip:
            assert self._pip.stdout is not None
            for line in self._pip.stdout:
                text = line.strip()
                last = text or last
                if text.startswith("ERROR:") and not first_error:
                    first_error = text.removeprefix("ERROR:").strip()
                if text.startswith(NEWS):
                    self.tell(step=news_of(text))
        if self._pip.returncode:
            said = (first_error or last)[:400]
            raise Refusal(f"{failure}: {said or f'exit code {self._pip.returncode}'}")


def is_version(found: str, wanted: str) -> bool:
    """Tell whether a version is the wanted one; any build is, unless one is named (`2.1+cpu`)."""
    return wanted == (found if "+" in wanted else found.partition("+")[0])


def news_of(text: str) -> str:
    """Return a line of pip without the address of the index."""
    words = text.split(" ")
    return " ".join(word.rpartition("/")[2] for word in words)[:160]


def pip_environment() -> dict[str, str]:
    """Return this environment without what would install into another place than the venv."""
    elsewhere = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
    kept = {name: value for name, value in os.environ.items() if name not in elsewhere}  # noqa: TID251
    # A user's pip.conf may say `user = true`, which a venv refuses.
    return {**kept, "PIP_USER": "0", "PYTHONNOUSERSITE": "1"}


def keep_alive(installer: Installer) -> None:
    """Tell now and then that the program lives, however long pip is silent."""
    while True:
        threading.Event().wait(ALIVE_S)
        installer.tell(alive=True)


def watch_stdin(installer: Installer) -> None:
    """End everything when the connection ends."""
    sys.stdin.buffer.read()
    installer.end()


def main(nonce: str) -> None:
    """Look, and install where that is asked."""
    sys.stdout.write(f'{nonce} {{"ready": true}}\n')
    sys.stdout.flush()
    wanted = json.loads(sys.stdin.buffer.readline())
    try:
        installer = Installer(nonce, wanted)
        installer.tell(**installer.look())
        line = sys.stdin.buffer.readline()
        if not line:
            return  # There was nothing to do, or it was only to be looked at.
        question = json.loads(line)
        wheel = sys.stdin.buffer.read(question["bytes"])
        for work in (keep_alive, watch_stdin):
            threading.Thread(target=work, args=(installer,), daemon=True).start()
        with installer.locked():
            installer.tell(**installer.install(wheel, question["name"]))
    except (Refusal, OSError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = f"cannot be written: {error.filename}: {error.strerror}"
        sys.stdout.write(f"{nonce} {json.dumps({'error': reason})}\n")
        sys.stdout.flush()
    # The thread that reads stdin would keep the interpreter from ending.
    os._exit(0)


# Python has read this text from a connection: its last argument is the mark of our lines.
if __name__ == "__main__":
    main(sys.argv[1])
