"""The console script: `jaxserve serve ...` is `python -m jaxserve.serve ...`, and so for every door."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec

DOORS = {
    "serve": "serve a model over HTTP and gRPC",
    "chat": "talk with a server or a local model",
    "top": "watch a server's load",
    "batch": "run a file of requests",
    "eval": "score a model with lm-eval",
    "bench": "load a server and say what its clients saw",
    "keys": "make API keys",
    "plan": "say what fits on a machine",
    "simulate": "run the scheduler on a virtual clock",
    "compile": "compile ahead of time",
    "verify": "compare the kernels with their references",
    "convert": "convert a checkpoint to Orbax",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the door that the first argument names with the arguments after it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    doors = {name: text for name, text in DOORS.items() if find_spec(f"jaxserve.{name}")}
    if given and given[0] in doors:
        door = f"jaxserve.{given[0]}"
        sys.argv = [f"python -m {door}", *given[1:]]
        runpy.run_module(door, run_name="__main__", alter_sys=True)
        return
    lines = ["usage: jaxserve DOOR [ARGUMENTS]", *(f"  {name:<9} {text}" for name, text in doors.items())]
    if not given or given[0] in ("-h", "--help"):
        print("\n".join(lines))
        return
    print("\n".join([f"jaxserve: no door named {given[0]!r}", *lines]), file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
