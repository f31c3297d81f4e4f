"""Versions of installed packages, this one's among them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "unknown"


def version_of(package: str) -> str:
    """A package's version; "unknown" where it is not installed, as jaxserve is not in a checkout that is only on the path."""
    try:
        return version(package)
    except PackageNotFoundError:
        return UNKNOWN
