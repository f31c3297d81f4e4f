"""Writes the ring down when the engine dies."""

from __future__ import annotations

import logging
import os
import time
import traceback
from dataclasses import replace
from pathlib import Path

from jaxserve.record.dump import write_dump
from jaxserve.record.recording import RecordHeader
from jaxserve.record.ring import StepRing

MAX_DUMPS = 8
_PREFIX, _SUFFIX = "jaxserve-crash-", ".record"

logger = logging.getLogger(__name__)


class CrashDumper:
    """Keeps the last crashes in a directory.

    Args:
        directory: made if it is missing; only its owner may look into it.
    """

    def __init__(self, ring: StepRing, directory: Path, header: RecordHeader) -> None:
        self.ring = ring
        self._directory = directory
        self._header = header

    def model_is(self, fingerprint: str) -> None:
        """The model has other weights from now on."""
        self._header = replace(self._header, fingerprint=fingerprint)

    def dump(self, error: BaseException) -> Path | None:
        """Write the ring to a new file, remove all but the newest `MAX_DUMPS`, and log where it is.

        Never raises: None if it could not be written, which is logged with the reason.
        """
        try:
            now = time.time_ns()
            reason = "".join(traceback.format_exception(error))
            recording = self.ring.recording(self._header, reason, now / 1e9)
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now // 10**9))
            path = self._directory / f"{_PREFIX}{moment}-{now % 10**9:09}-{os.getpid()}{_SUFFIX}"
            write_dump(path, recording)
            self._remove_old()
        except Exception:
            logger.exception("the last steps before the crash could not be written to %s", self._directory)
            return None
        logger.error("the last %d steps are in %s, prompts included", len(recording.steps), path)
        return path

    def _remove_old(self) -> None:
        """Names hold the time, so that they sort by age."""
        for path in sorted(self._directory.glob(f"{_PREFIX}*{_SUFFIX}"))[:-MAX_DUMPS]:
            path.unlink(missing_ok=True)
