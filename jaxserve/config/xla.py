"""XLA's own variable of the environment."""

from __future__ import annotations

import os


def xla_flags() -> str:
    """XLA_FLAGS: flags of every program that this process compiles; they are part of what a program depends on."""
    return os.environ.get("XLA_FLAGS", "")
