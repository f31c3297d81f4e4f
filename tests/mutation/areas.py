"""The parts of the product that mutants are drawn from, and the tests that should kill them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PER_AREA = 20


@dataclass(frozen=True)
class Area:
    """A part of the product.

    Attributes:
        sources: folders and files, from the root.
        tests: names of folders of tests, wherever they are below `tests/`, and beginnings of names of test files, in the order in
            which they run: the quickest and closest first.
    """

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    suffix: str = ".py"

    def files(self, root: Path) -> list[Path]:
        """The sources, but for generated ones."""
        found: set[Path] = set()
        for source in self.sources:
            path = root / source
            found |= {path} if path.is_file() else {*path.rglob(f"*{self.suffix}")}
        return sorted(path for path in found if not path.stem.endswith(("_pb2", "_pb2_grpc")))

    def test_files(self, root: Path) -> list[str]:
        """Files of tests, from the root, each once."""
        every = sorted((root / "tests").rglob("test_*.py"))
        return [str(path.relative_to(root)) for path in dict.fromkeys(path for name in self.tests for path in _of(name, every))]


def _of(name: str, every: list[Path]) -> Iterator[Path]:
    for path in every:
        if name.startswith("test_"):
            if path.name.startswith(name):
                yield path
        elif f"/{name}/" in path.as_posix():
            yield path


AREAS = (
    Area("scheduler", ("jaxserve/scheduler",), ("scheduler",)),
    Area("cache", ("jaxserve/cache",), ("cache", "scheduler")),
    Area("step", ("jaxserve/step", "jaxserve/executor"), ("step", "executor", "test_local", "test_invariance", "test_swapping")),
    Area("sampling", ("jaxserve/sampling",), ("sampling", "test_params", "test_logprobs")),
    Area("grammar", ("jaxserve/grammar",), ("grammar", "test_structured")),
    Area("chat_parsing", ("jaxserve/chat_parsing",), ("chat_parsing",)),
    Area("server_bodies", ("server/http", "server/chat", "server/grpc"), ("server", "streams")),
    Area("gateway", ("server/gateway", "server/batches", "server/kserve"), ("gateway", "batches", "server")),
    Area("models", ("jaxserve/models",), ("models", "test_golden")),
    Area("weights", ("jaxserve/weights", "jaxserve/quantization"), ("weights", "quantization")),
    Area("sharding", ("sharding",), ("sharding", "test_tensor_parallel", "mesh")),
    Area("planner", ("jaxserve/planner",), ("planner",)),
    Area("adapters", ("jaxserve/adapters",), ("adapters", "test_adapters", "test_lora")),
    Area("config", ("jaxserve/config",), ("config",)),
    Area("engine", ("jaxserve/engine", "jaxserve/speculation"), ("unit/engine", "speculation", "engine_client", "chaos")),
    Area("xla_kernels", ("pallas_kernels",), ("kernels",), suffix="xla.py"),
    Area("native_kernels", ("pallas_kernels",), ("test_native_kernels", "test_native"), suffix=".cc"),
)
