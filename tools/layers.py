"""Check the layer laws of the packages by reading their source; nothing is imported.

Usage: ``python -m tools.layers [ROOT]``. Prints one line for each violation, exits 1 if any.
An import counts wherever it stands: in a function, under TYPE_CHECKING, or by import_module.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.source_tree import PACKAGES, UNKNOWN, Module, below, dotted, import_aliases, read_modules

CONFIG_MODULES = ("worker.config", "orchestrator.config")
HEAVY = (
    "torch",
    "transformers",
    "accelerate",
    "bitsandbytes",
    "llvmlite",
    "numpy",
    "tokenizers",
    "safetensors",
)
HEAVY_HOMES = ("worker.backends.transformers", "worker.model")
# internals sets one switch that transformers' loader has as an environment variable only. The other
# three are programs of their own, whose text runs on another host.
ENVIRONMENT_HOMES = (
    *CONFIG_MODULES,
    "worker.model.internals",
    "orchestrator.doctor.probe",
    "orchestrator.setup.installer",
    "orchestrator.transport.remote_boot",
)
ENVIRONMENT = ("os.environ", "os.environb", "os.getenv", "os.getenvb")
MESSAGES = tuple(f"worker.protocol.{name}" for name in ("ops", "events", "codec", "schema"))
RUNNING = tuple(
    f"orchestrator.{name}" for name in ("transport", "stage", "scheduler", "stages", "generate")
)
FRONT = ("orchestrator.cli", "orchestrator.serve", "orchestrator.bundle")

# (modules under the law, what they must not import, why). A name stands for all below it.
FORBIDDEN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("orchestrator.transport", MESSAGES, "transport knows no messages"),
    ("orchestrator.transport", RUNNING[1:] + FRONT, "transport is the lowest layer"),
    ("orchestrator.stage", RUNNING[2:] + FRONT[:2], "a stage knows no other stage"),
    (
        "orchestrator.stages",
        (
            "subprocess",
            "orchestrator.transport.local",
            "orchestrator.transport.ssh",
            "orchestrator.transport.command",
            "orchestrator.generate",
            *FRONT[:2],
        ),
        "the pipeline knows no process",
    ),
    ("orchestrator.scheduler", RUNNING[3:] + FRONT[:2], "the scheduler serves the pipeline"),
    (
        "orchestrator.bundle",
        (*RUNNING, *FRONT[:2], "subprocess", "socket"),
        "bundle reads files only",
    ),
    ("tests", ("unittest.mock", "mock"), "tests use real peers, not mocks"),
)


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """One broken law at one line."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def stdlib_only(module: Module) -> Iterator[tuple[int, str]]:
    """worker.protocol, and the package that holds it, import the standard library only."""
    if module.name != "worker" and not below(module.name, "worker.protocol"):
        return
    for used in module.imports:
        top = used.name.split(".")[0]
        if top not in sys.stdlib_module_names and not below(used.name, "worker.protocol"):
            yield used.line, f"{module.name} imports {used.name}: the protocol is stdlib only"


def heavy_at_home(module: Module) -> Iterator[tuple[int, str]]:
    """torch and its kin are imported below the model code only, and that code lazily."""
    if not below(module.name, *PACKAGES) or below(module.name, *HEAVY_HOMES, "worker.protocol"):
        return
    for used in module.imports:
        if below(used.name, *HEAVY):
            yield used.line, f"{module.name} imports {used.name}: only {HEAVY_HOMES} may"
        elif below(used.name, *HEAVY_HOMES) and not used.in_function:
            yield (
                used.line,
                f"{module.name} imports {used.name} at its top: the stub needs no torch",
            )
        elif used.name == UNKNOWN:
            yield used.line, f"{module.name} imports a computed name: the layers cannot be checked"


def protocol_only(module: Module) -> Iterator[tuple[int, str]]:
    """The orchestrator uses nothing of the worker but the protocol, and the reverse never."""
    for used in module.imports:
        if below(module.name, "orchestrator") and below(used.name, "worker"):
            if not below(used.name, "worker.protocol"):
                yield used.line, f"{module.name} imports {used.name}: only worker.protocol may be"
        elif below(module.name, "worker") and below(used.name, "orchestrator"):
            yield used.line, f"{module.name} imports {used.name}: the worker stands alone"


def forbidden(module: Module) -> Iterator[tuple[int, str]]:
    """The table FORBIDDEN."""
    for top, names, why in FORBIDDEN:
        for used in module.imports if below(module.name, top) else ():
            if below(used.name, *names):
                yield used.line, f"{module.name} imports {used.name}: {why}"


def no_hidden_state(module: Module) -> Iterator[tuple[int, str]]:
    """No environment read outside the config modules, no ``global``."""
    if not below(module.name, *PACKAGES):
        return
    if module.name not in ENVIRONMENT_HOMES:
        for used in module.imports:
            if used.name in ENVIRONMENT:
                yield used.line, f"{module.name} imports {used.name}: only {CONFIG_MODULES} may"
        aliases = import_aliases(module)
        for node in module.nodes:
            name = dotted(node, aliases) if isinstance(node, ast.Attribute) else None
            if name in ENVIRONMENT:
                yield node.lineno, f"{module.name} uses {name}: only {CONFIG_MODULES} may"  # type: ignore[attr-defined]
    for node in module.nodes:
        if isinstance(node, ast.Global):
            yield node.lineno, f"{module.name} rebinds a global: state is passed, not hidden"


def messages_once(module: Module) -> Iterator[tuple[int, str]]:
    """No event is spelled out as a dict outside the protocol."""
    if not below(module.name, *PACKAGES) or below(module.name, "worker.protocol"):
        return
    for node in module.nodes:
        if not isinstance(node, ast.Dict):
            continue
        if any(isinstance(key, ast.Constant) and key.value == "event" for key in node.keys):
            yield node.lineno, f"{module.name} spells out an event: use worker.protocol.events"


Law = Callable[[Module], Iterator[tuple[int, str]]]
LAWS: tuple[Law, ...] = (
    stdlib_only,
    heavy_at_home,
    protocol_only,
    forbidden,
    no_hidden_state,
    messages_once,
)


def violations(root: Path) -> list[Violation]:
    """Return every violation below ``root``, sorted by path and line."""
    found = {
        Violation(str(module.path), line, text)
        for module in read_modules(root)
        for law in LAWS
        for line, text in law(module)
    }
    return sorted(found)


def main() -> int:
    """Print the violations; exit 1 when there is one."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = violations(root)
    for violation in found:
        print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
