"""Golden checkpoints with a module for multi-token prediction beside their layers; see golden/make_modules.py."""

import json
import shutil
from pathlib import Path

from safetensors import safe_open

from tests.golden.reading import DATA

MODULES = DATA.parent / "modules"


def with_module(name: str, directory: Path) -> Path:
    """A golden checkpoint and its module in one directory, whose index names the files of both."""
    shutil.copytree(DATA / name, directory)
    shutil.copy(MODULES / name / "module.safetensors", directory)
    (directory / "model.safetensors").rename(directory / "target.safetensors")
    files: dict[str, str] = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, "numpy") as tensors:
            files |= dict.fromkeys(tensors.keys(), path.name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return directory
