"""The environment of lm-eval and of the libraries that it stands on, which look at it when they are first imported."""

from __future__ import annotations

import os
from pathlib import Path

_ALWAYS = {
    "HF_HUB_OFFLINE": "1",  # nothing is fetched
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",  # one bar is enough
    "TQDM_DISABLE": "1",
    "DISABLE_MULTIPROC": "1",  # bootstrapped errors come from this process: a fork of one that runs jax may hang
}
_CACHES = ("HF_HOME", "XDG_CACHE_HOME")


def prepare_harness(scratch: Path) -> None:
    """Take the harness off the network. Call it before its first import.

    Data sets that Hugging Face's cache holds are used from there. Its files go to the person's cache directory.

    Args:
        scratch: where they go if the person has no home, or none that can be written to.
    """
    os.environ.update(_ALWAYS)
    home = os.environ.get("HOME", os.path.expanduser("~"))  # "~" if there is none; an empty HOME is no home
    if not any(os.environ.get(name) for name in _CACHES) and not os.access(home, os.W_OK):
        os.environ["HF_HOME"] = str(scratch)
