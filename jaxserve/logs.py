"""How the processes of a server log."""

from __future__ import annotations

import logging


def set_up_logging(level: str) -> None:
    """Our own messages from `level` on, libraries' warnings, all on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("jaxserve", "server"):
        logging.getLogger(name).setLevel(level.upper())
