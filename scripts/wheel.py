"""Hatch's hook for wheels: puts packages with common names below ours, and the native library with them if it was built."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = Path("pallas_kernels") / "native" / "built"  # git ignores it, and so would hatch
PACKAGES = Path("jaxserve") / "packages"  # pyproject.toml moves all but jaxserve there
PATH_FILE = "jaxserve.pth"  # lets Python find them from there, after everything else


class Hook(BuildHookInterface[Any]):
    """Without a library the wheel is for any machine, and an engine compiles one at its first start."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the path file and the library; an editable installation finds everything in the checkout."""
        if version == "editable":
            return
        self._path_file.parent.mkdir(parents=True, exist_ok=True)
        self._path_file.write_text(f"{PACKAGES.as_posix()}\n", encoding="utf-8")
        build_data["force_include"][str(self._path_file)] = PATH_FILE
        found = sorted((Path(self.root) / BUILT).glob("*.so"))
        if not found:
            return
        build_data["force_include"].update({str(path): str(PACKAGES / BUILT / path.name) for path in found})
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the path file, which is in the wheel now."""
        self._path_file.unlink(missing_ok=True)

    @property
    def _path_file(self) -> Path:
        return Path(self.directory) / PATH_FILE
