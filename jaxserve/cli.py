"""The console script: `jaxserve serve ...` is `python -m jaxserve.serve ...`, and so for every command."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from jaxserve.config.flags import version_line
from jaxserve.own_packages import own_process

COMMANDS = {
    "serve": "serve a model over HTTP and gRPC",
    "chat": "talk with a server or a local model",
    "top": "watch a server's load",
    "fleet": "serve replicas on a Ray cluster",
    "batch": "run a file of requests",
    "eval": "score a model with lm-eval",
    "bench": "load a server and say what its clients saw",
    "keys": "make API keys",
    "plan": "say what fits on a machine",
    "simulate": "run the scheduler on a virtual clock",
    "compile": "compile ahead of time",
    "verify": "compare kernels with their references, log-probabilities with a trainer's",
    "convert": "convert a checkpoint to Orbax",
    "quantize": "quantize a checkpoint and measure what it loses",
}


def main(arguments: Sequence[str] | None = None) -> None:
    if arguments is None:
        own_process()
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands = {name: text for name, text in COMMANDS.items() if find_spec(f"jaxserve.{name}")}
    if given and given[0] in commands:
        module = f"jaxserve.{given[0]}"
        sys.argv = [f"python -m {module}", *given[1:]]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif not given or given[0] in ("-h", "--help"):
        print("\n".join(["usage: jaxserve COMMAND [ARGUMENTS]", *(f"  {name:<9} {text}" for name, text in commands.items())]))
    elif given[0] == "--version":
        print(version_line())
    else:
        print(f"jaxserve: no command {given[0]!r}; there are {', '.join(commands)}", file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    main()
