"""Hatch's hook for wheels: one that is built where the native library is has it in it, and is of this machine's kind."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = Path("pallas_kernels") / "native" / "built"  # git ignores it, and so would hatch


class NativeLibrary(BuildHookInterface[Any]):
    """Without a library the wheel is for any machine, and an engine compiles one at its first start."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add what is there; an editable installation finds it where it is."""
        found = sorted((Path(self.root) / BUILT).glob("*.so"))
        if version == "editable" or not found:
            return
        build_data["force_include"].update({str(path): str(BUILT / path.name) for path in found})
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
