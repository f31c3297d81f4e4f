"""Results as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(path: Path, report: dict[str, Any]) -> None:
    """Replace the file, so that there is a whole one at any time."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(report, indent=1) + "\n")
    beside.replace(path)
