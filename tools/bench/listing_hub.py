"""The hub of the tests, with the pages more that transformers asks: what a model consists of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.hub import COMMIT, Hub
from tests.support.hub_faults import Asked
from tests.support.hub_handler import Answer


@dataclass
class ListingHub(Hub):
    """Serves, below /api/models, the pages that `write_pages` wrote into a folder."""

    pages: Path = field(default_factory=Path)

    def answer(self, asked: Asked) -> Answer:
        """Return the right answer to a request."""
        if asked.path.startswith("/api/models/"):
            page = "tree.json" if "/tree/" in asked.path else "info.json"
            return Answer(200, {"Content-Type": "application/json"}, self.pages / page)
        return super().answer(asked)


def write_pages(model: Path, repo_id: str, pages: Path) -> None:
    """Write what a hub says of the files in `model`."""
    files = sorted(path for path in model.iterdir() if path.is_file())
    siblings = [{"rfilename": path.name} for path in files]
    tree = [
        {
            "type": "file",
            "path": path.name,
            "size": path.stat().st_size,
            "oid": hashlib.sha256(path.name.encode()).hexdigest()[:40],
        }
        for path in files
    ]
    info = {"id": repo_id, "sha": COMMIT, "siblings": siblings}
    (pages / "info.json").write_text(json.dumps(info))
    (pages / "tree.json").write_text(json.dumps(tree))
