"""The GPU benchmark starts where jaxserve is not installed, and neither is what only its servers and files need."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
BARE = """
import importlib, importlib.abc, importlib.metadata, sys

MISSING = {"msgspec", "fastapi", "uvicorn", "starlette", "pydantic", "zmq", "jax_triton", "torch", "orbax", "grpc_health"}


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def version(name, installed=importlib.metadata.version):
    if name == "jaxserve":
        raise importlib.metadata.PackageNotFoundError(name)
    return installed(name)


sys.meta_path.insert(0, Missing())
importlib.metadata.version = version
from benchmarks.gpu.sections import SECTIONS

for entry in SECTIONS.values():
    entry.load()
from benchmarks.gpu.__main__ import main

assert MISSING & set(sys.modules) == {"msgspec"}
assert sys.modules["msgspec"].Struct.__module__ == "benchmarks.gpu.bare"
main(["--help"])
"""


def test_only_common_packages_are_needed():
    ran = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "--rehearse" in ran.stdout
