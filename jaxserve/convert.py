"""The command `python -m jaxserve.convert SOURCE OUTPUT [flags]`: a model directory with Orbax weights, or a manifest."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

from jaxserve.config.check import check_types
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags
from jaxserve.engine.preparation import BUNDLED_MODEL, model_directory
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.jax_settings import engine_settings
from jaxserve.standard_streams import after_output
from jaxserve.weights.conversion import Source, convert, make_manifest
from jaxserve.weights.manifest import MANIFEST

_EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertConfig:
    """What to convert, and into what."""

    source: str | None = setting(None, "model directory in Hugging Face format, pico, or a MaxText checkpoint", positional=True)
    output: str | None = setting(None, "model directory to write, with Orbax weights; must not exist", positional=True)
    source_format: Literal["hf", "maxtext"] = setting("hf", "what the source is", short="--from")
    config: str | None = setting(None, "config.json of the model, with its tokenizer beside it; the source's by default")
    maxtext_rope: Literal["auto", "neighbours", "halves"] = setting(
        "auto", "elements that MaxText's rotary embedding turns together; 'auto': neighbours for Llama 3.1's, halves for others"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto", "dtype to write, which dequantizes weights; 'auto' leaves everything as it is"
    )
    manifest: bool = setting(False, f"convert nothing: write {MANIFEST} for the source as it is now")

    def __post_init__(self) -> None:
        check_types(self)
        if self.source is None:
            raise ConfigError("source: name what to convert", param="source")
        others = (self.output, self.source_format, self.config, self.maxtext_rope, self.dtype)
        if self.manifest and others != (None, "hf", None, "auto", "auto"):
            raise ConfigError("manifest goes with a model directory alone: nothing is converted", param="manifest")
        if not self.manifest and self.output is None:
            raise ConfigError("output: name the directory to write", param="output")


def main(argv: Sequence[str] | None = None) -> int:
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax tells its own choices as warnings
    jax.config.update("jax_platforms", "cpu")  # nothing is computed: no GPU's memory is taken from whoever uses it
    started = time.monotonic()
    try:
        config = ConvertConfig(**vars(_parser().parse_args(argv)))
        with _progress() as told:
            said = _run(config, told)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    Console(highlight=False, soft_wrap=True).print(f"{said} in {time.monotonic() - started:.1f} s", markup=False)
    return 0


@engine_settings()
def _run(config: ConvertConfig, told: Callable[[int, int], None]) -> str:
    path = model_directory(BUNDLED_MODEL) if config.source == BUNDLED_MODEL else Path(config.source or "")
    if config.manifest:
        if not path.is_dir():
            raise ConfigError(f"source: there is no directory {path}", param="source")
        return f"{path / MANIFEST}: checksums of {len(make_manifest(path, told).tensors)} tensors"
    source = Source(
        path=path,
        kind=config.source_format,
        config=None if config.config is None else Path(config.config),
        rope=None if config.maxtext_rope == "auto" else config.maxtext_rope,
    )
    dtype = None if config.dtype == "auto" else config.dtype
    manifest = convert(source, Path(config.output or ""), dtype, told)
    return f"{config.output}: {len(manifest.tensors)} tensors"


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m jaxserve.convert", description="Convert a checkpoint to Orbax, or write a manifest of checksums."
    )
    add_flags(parser, ConvertConfig)
    return parser


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; nothing in a log, where the last line says it all."""
    console = Console(stderr=True)
    columns = (TextColumn("converting"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("converting")
        yield lambda done, total: progress.update(task, completed=done, total=total)


if __name__ == "__main__":
    sys.exit(after_output(main()))
