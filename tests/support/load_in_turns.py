"""Loads a checkpoint with threads that take turns as often as may be: in a process of its own, which may crash."""

import sys

from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding import make_mesh


def main(directory: str) -> None:
    config, mesh = decoder_config(read_hf_config(directory)), make_mesh()
    sys.setswitchinterval(1e-6)
    load_params(directory, config, mesh, "float32")


if __name__ == "__main__":
    main(*sys.argv[1:])
