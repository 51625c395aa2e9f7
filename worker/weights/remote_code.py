"""Bring the Python files of a hub model here, for users who trust them."""

from __future__ import annotations

import json
import re

from worker.weights.repo import CONFIG_FILE, ModelFolder

# `from .configuration_x import A`, `from . import modeling_x`, `import .x` is no Python
_RELATIVE = re.compile(r"^\s*from\s+\.(\w*)\s+import\s+\(?\s*([\w, ]+)", re.MULTILINE)


def take_code(model: ModelFolder) -> None:
    """Bring the modules that config.json names, and those that they import from beside them.

    Does nothing for a local folder, or where config.json names none. Code in another repository
    (`org/name--module.Class`) is left to transformers, which refuses it from a folder.

    Raises:
        LoadFailed: the hub does not give a module; one sentence with advice.
    """
    if model.repo_id is None:
        return
    wanted = [f"{module}.py" for module in _named_modules(model)]
    taken: set[str] = set()
    while wanted:
        file = wanted.pop()
        if file in taken:
            continue
        taken.add(file)
        model.fetch([file], lambda num_bytes: None)
        source = (model.folder / file).read_text("utf-8", "replace")
        wanted += [f"{module}.py" for module in _imported_modules(source)]


def _named_modules(model: ModelFolder) -> set[str]:
    try:
        fields = json.loads((model.folder / CONFIG_FILE).read_bytes())
    except ValueError:
        return set()  # what is wrong with it is said by whoever reads it next
    auto_map = fields.get("auto_map") if isinstance(fields, dict) else None
    if not isinstance(auto_map, dict):
        return set()
    named = [name for name in auto_map.values() if isinstance(name, str)]
    return {name.partition(".")[0] for name in named if "--" not in name and "." in name}


def _imported_modules(source: str) -> set[str]:
    found: set[str] = set()
    for module, names in _RELATIVE.findall(source):
        found |= {module} if module else {name.split()[0] for name in names.split(",") if name}
    return found
