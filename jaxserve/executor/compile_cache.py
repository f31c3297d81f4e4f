"""Compiled programs kept on disk, so that the second start of the same model compiles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxserve.config.home import cache_directory

NO_CACHE = "none"


def keep_compiled_programs(directory: str | None) -> None:
    """Use jax's persistent compilation cache in `directory`; the user's cache directory for None, no cache for "none".

    A cache that the process has configured already (JAX_COMPILATION_CACHE_DIR) stays as it is unless a directory is named.
    """
    if directory == NO_CACHE:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if directory is not None or jax.config.jax_compilation_cache_dir is None:
        path = Path(directory) if directory else cache_directory()
        if path is None:
            jax.config.update("jax_enable_compilation_cache", False)
            return
        jax.config.update("jax_compilation_cache_dir", str(path))
    # By default jax keeps only what took a second to compile; a model has many programs that take less.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def kept_directory() -> Path | None:
    """Where programs are kept that need not be traced again, beside jax's; None if none are to be kept."""
    place = jax.config.jax_compilation_cache_dir
    if not jax.config.jax_enable_compilation_cache or place is None or "://" in place:  # jax's may be in a bucket
        return None
    return Path(place) / "programs"


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Compile without the persistent cache.

    For devices that are not here jax writes programs to it that it cannot read back; on CPUs it reads programs back that lack
    functions once they are saved again.
    """
    enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # jax asks once whether a cache is used, and remembers
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()
