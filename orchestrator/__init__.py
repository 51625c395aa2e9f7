"""Starts the stages of one model on several hosts, streams the text, leaves a bundle.

`from orchestrator import Pipeline` is the Python API; docs/api.md describes it.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from orchestrator.api import *  # noqa: F403 - the checker sees what __getattr__ finds


def __getattr__(name: str) -> object:
    """Import the Python API on its first use; the command line answers --help in less time."""
    if name[0].isupper():  # else a module of this package that is being imported
        from orchestrator import api

        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
