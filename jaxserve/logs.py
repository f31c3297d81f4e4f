"""How the processes of a server log: lines for people, or a JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from types import TracebackType
from typing import Any

FIELDS = "fields"  # attribute of records that say what they have to say by name


def set_up_logging(level: str, log_format: str = "text") -> None:
    """Our own messages from `level` on, libraries' warnings, all on stderr, as "text" or as "json"."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in ("jaxserve", "server", "pallas_kernels"):
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every form that a client got wrong
    if log_format == "json":  # where Python would write what is no object
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_exception
        threading.excepthook = lambda hook: _log_exception(hook.exc_type, hook.exc_value, hook.exc_traceback)


def _log_exception(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None:
        logging.getLogger(__name__).critical("ended by %s", kind.__name__, exc_info=(kind, error, trace))


class TextFormatter(logging.Formatter):
    """A line with the time, for people; fields follow as name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s%(words)s", defaults={"words": ""})

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, FIELDS, {})
        record.words = "".join(f" {name}={_word(value)}" for name, value in fields.items())
        record.message = _line(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """An object with time (UTC), level, logger, message, the fields and, if there is one, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _line(message: str) -> str:
    """A message without line ends and control characters: it may hold names that clients chose, and must not look like others."""
    if message.isprintable():
        return message
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in message)


def _word(value: Any) -> str:
    """A value as one word: what clients sent is quoted where it could be taken for something else."""
    text = "-" if value in (None, "") else str(value)
    return text if text.isascii() and text.isprintable() and not set(text) & set(' "=\\') else json.dumps(text)
