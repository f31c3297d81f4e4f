"""The engines: how each is started on the model, and what to install where one is missing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.peers.checkpoint import Models

ROOT = Path(__file__).resolve().parents[2]
CONTEXT, ROWS, CACHE_GIB = 2048, 64, 1
_VLLM_SIZES = ("--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(ROWS))
_READY_SECONDS, _STOP_SECONDS, _POLL_SECONDS, _PATIENCE_SECONDS = 600.0, 30.0, 0.2, 600


@dataclass(frozen=True, slots=True)
class Recipe:
    """One engine.

    Attributes:
        name: as it is called in results.
        command: what starts its server.
        port: it serves on.
        health: path that answers 200 once it is ready.
        fields: what its requests say besides the workload's: the model's name.
        environment: variables it needs besides those of this process.
    """

    name: str
    command: Sequence[str]
    port: int
    health: str
    fields: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)


class Engine:
    """A server of an engine, as processes of its own.

    Args:
        recipe: how it is started.
        log: file that takes what it writes.

    Attributes:
        ready_seconds: from the command to the first answer.
    """

    def __init__(self, recipe: Recipe, log: Path) -> None:
        self.recipe = recipe
        self.url = f"http://127.0.0.1:{recipe.port}"
        began = time.perf_counter()
        with log.open("wb") as output:
            environment = {**os.environ, **recipe.environment}
            self._popen = subprocess.Popen(
                recipe.command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._wait(began + _READY_SECONDS, log)
        except BaseException:
            self.stop()
            raise
        self.ready_seconds = time.perf_counter() - began

    def cpu_seconds(self) -> float:
        """Seconds of CPU that it has taken so far, its children included."""
        return sum(sum(process.cpu_times()[:2]) for process in self._processes())

    def memory(self) -> int:
        """Bytes of memory that are its own, its share of shared pages included."""
        return sum(process.memory_full_info().pss for process in self._processes())

    def stop(self) -> None:
        """End it and its children."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._popen.pid, number)
                self._popen.wait(_STOP_SECONDS)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def _processes(self) -> list[psutil.Process]:
        process = psutil.Process(self._popen.pid)
        return [process, *process.children(recursive=True)]

    def _wait(self, deadline: float, log: Path) -> None:
        while time.perf_counter() < deadline and self._popen.poll() is None:
            try:
                if httpx.get(self.url + self.recipe.health, timeout=_POLL_SECONDS * 10).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"{self.recipe.name} did not get ready; its log ends: {log.read_text(errors='replace')[-1500:]}")


def begun(recipe: Recipe, logs: Path, opened: ExitStack) -> Engine:
    """Its server, which is stopped when `opened` ends."""
    engine = Engine(recipe, logs / f"{recipe.name}.log")
    opened.callback(engine.stop)
    return engine


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def jaxserve(models: Models, flags: Sequence[str]) -> Recipe:
    """This repository's server, with 1 GiB of KV cache and these flags besides."""
    made = jaxserve_by_default(
        models, ["--max-model-len", str(CONTEXT), "--kv-cache-memory-gib", str(CACHE_GIB), "--log-level", "warning", *flags]
    )
    # Nobody else has a time limit; its own default would refuse what the others let wait.
    return replace(made, fields={**made.fields, "queue_timeout": _PATIENCE_SECONDS, "timeout": _PATIENCE_SECONDS})


def jaxserve_by_default(models: Models, flags: Sequence[str]) -> Recipe:
    """This repository's server as it is without these flags."""
    port = free_port()
    command = [sys.executable, "-m", "jaxserve.serve", str(models.checkpoint), "--port", str(port), "--grpc-port", "0", *flags]
    return Recipe("jaxserve", command, port, "/ready", {"model": models.checkpoint.name})


def llama_cpp(models: Models, server: str, threads: int) -> Recipe:
    """llama.cpp's server: 32 slots, each with the whole context: 0.75 GiB of KV cache."""
    port, slots = free_port(), 32
    sizes = ["--parallel", str(slots), "--ctx-size", str(slots * CONTEXT), "--threads", str(threads)]
    command = [server, "--model", str(models.gguf), "--port", str(port), "--cont-batching", *sizes]
    return Recipe("llama.cpp", command, port, "/health", {"model": "llama150m"})


def vllm(models: Models, python: str, flags: Sequence[str] = _VLLM_SIZES) -> Recipe:
    """Of vLLM on CPU: bfloat16, prefix cache on (its default), 1 GiB of KV cache, threads on every core."""
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models.checkpoint), "--port", str(port), *flags]
    return Recipe("vllm", command, port, "/health", {"model": str(models.checkpoint)}, vllm_environment(python))


def vllm_environment(python: str) -> dict[str, str]:
    """What vLLM of this interpreter gets besides this process's variables.

    By itself it leaves a core to its other processes, which halves what two cores give. Intel's OpenMP comes with the package
    and tcmalloc may lie in its environment; its documentation wants both loaded first.
    """
    home = Path(python).parents[1]
    path = f"{Path(python).parent}:{os.environ['PATH']}"  # its compiler driver looks for ninja there
    libraries = [*sorted(home.rglob("libtcmalloc_minimal.so.4"))[:1], *(home / "lib").glob("libiomp5.so")]
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "LD_PRELOAD": ":".join(map(str, libraries)),
        "PATH": path,
    }


def openvino(models: Models, python: str, threads: int) -> Recipe:
    """OpenVINO GenAI behind `host_openvino`."""
    return _hosted("openvino", python, models.gguf_float16, threads)


def transformers(models: Models, python: str, threads: int) -> Recipe:
    """HF transformers behind `host_transformers`."""
    return _hosted("transformers", python, models.checkpoint, threads)


def _hosted(name: str, python: str, model: Path, threads: int) -> Recipe:
    port = free_port()
    command = [python, "-m", f"benchmarks.peers.host_{name}", str(model), str(port), str(threads)]
    return Recipe(name, command, port, "/health", {"model": "llama150m"})
