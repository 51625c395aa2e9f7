"""Read the packages' source into dotted names and imports; nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("worker", "orchestrator")
UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: absolute dotted name, line, and whether it stands inside a function."""

    name: str
    line: int
    in_function: bool


@dataclass(frozen=True)
class Module:
    """One source file: dotted name, path relative to the root, syntax tree, imports."""

    name: str
    path: Path
    tree: ast.Module
    imports: tuple[Import, ...]

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree, which several laws look through."""
        return tuple(ast.walk(self.tree))


def below(name: str, *tops: str) -> bool:
    """Tell whether a dotted name is one of ``tops`` or lies below one."""
    return any(name == top or name.startswith(top + ".") for top in tops)


def dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """Return the full dotted name an expression refers to, or None when it is no plain name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value, aliases)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def module_name(path: Path) -> str:
    """Return the dotted module name of a path relative to the root."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source_of(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Return the absolute module that a ``from … import`` names."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def find_imports(node: ast.AST, module: str, is_package: bool, inside: bool) -> Iterator[Import]:
    """Yield every import below a node. ``from a import b`` gives ``a.b``, which may be a name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            source = source_of(child, module, is_package)
            yield from (
                Import(f"{source}.{alias.name}", child.lineno, inside) for alias in child.names
            )
        elif isinstance(child, ast.Call):
            called = dotted(child.func, {}) or ""
            if called.split(".")[-1] in ("import_module", "__import__") and child.args:
                first = child.args[0]
                literal = isinstance(first, ast.Constant) and isinstance(first.value, str)
                name = ast.literal_eval(first) if literal else UNKNOWN
                yield Import(name, child.lineno, inside)
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from find_imports(child, module, is_package, inside or function)


def read_modules(root: Path) -> list[Module]:
    """Parse every Python file of the packages and the tests below ``root``."""
    modules = []
    for top in (*PACKAGES, "tests"):
        for path in sorted((root / top).rglob("*.py")):
            relative = path.relative_to(root)
            tree = ast.parse(path.read_text(encoding="utf-8"), str(relative))
            name = module_name(relative)
            found = find_imports(tree, name, path.name == "__init__.py", False)
            modules.append(Module(name, relative, tree, tuple(found)))
    return modules


def import_aliases(module: Module) -> dict[str, str]:
    """Map the local names of ``import a as b`` to what they stand for."""
    nodes = [node for node in module.nodes if isinstance(node, ast.Import)]
    return {alias.asname: alias.name for node in nodes for alias in node.names if alias.asname}
