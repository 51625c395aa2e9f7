"""Why there is no link, or nothing on it."""

from __future__ import annotations


class NoCertificate(Exception):
    """No certificate can be made here; the text says why."""


class Unreachable(Exception):
    """No connection to the next stage; the text says why, for each address."""


class LinkClosed(Exception):
    """The other end is gone, or breaks the rules; the text says which."""


class NothingHanded(Exception):
    """There are no hidden states for a ticket, and will be none; the text says why."""
