"""What is looked at on a host, in the order in which one needs the other."""

from __future__ import annotations

from enum import StrEnum


class Check(StrEnum):
    """One check; the value is its heading."""

    NAME = "name"
    PORT = "port"
    KEY = "key"
    LOGIN = "login"
    PYTHON = "python"
    PACKAGES = "packages"
    CODE = "code"
    DEVICE = "device"
    MEMORY = "memory"
    DISK = "disk"
    CLOCK = "clock"
    LINK = "link"
    MODEL = "model"


# What only SSH has.
OF_SSH = (Check.NAME, Check.PORT, Check.KEY)
