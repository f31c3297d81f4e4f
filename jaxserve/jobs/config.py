"""Settings of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxserve.config.check import check_types, require_at_least
from jaxserve.config.fields import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """How a file of requests is worked off."""

    concurrency: int = setting(64, "sequences that are asked for at once, at most", flag=False)
    order: Literal["file", "prefix"] = setting(
        "prefix", "which of the requests at hand go first: as in the file, or by shared beginnings of prompts"
    )
    window: int = setting(4096, "requests that are read ahead, and put in order, at most")
    window_mib: int = setting(64, "size of the lines that are read ahead in MiB, at most")
    max_line_mib: int = setting(16, "longest line of the input in MiB; a longer one goes to the error file")
    commit_seconds: float = setting(1.0, "seconds between commits: what a crash makes to be done again, at most")

    suspected_after: int = setting(1, "runs that ended with a line in flight, before it is answered apart", flag=False)

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("concurrency", "window", "window_mib", "max_line_mib", "suspected_after"):
            require_at_least(name, getattr(self, name), 1)
        require_at_least("commit_seconds", self.commit_seconds, 0.01)
