"""Why something that Ray Serve was to keep cannot be built, in one line. Knows nothing of Ray."""

from __future__ import annotations

import re


def reason_in(message: str) -> str | None:
    """The last error of ours in the traceback that Ray Serve keeps of a failed deployment."""
    found: list[str] = re.findall(r"^jaxserve\.errors\.\w+: (.+)$", message, re.MULTILINE)
    return found[-1] if found else None
