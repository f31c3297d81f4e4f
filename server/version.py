"""The server's own version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def server_version() -> str:
    """The installed version; "unknown" when run from a checkout that is not installed."""
    try:
        return version("jaxserve")
    except PackageNotFoundError:
        return "unknown"
