"""The harness's tasks by name: found, loaded, and checked before a model is."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager

from jaxserve.errors import ConfigError
from jaxserve.evaluation.listing import Listed

OWN = Path(str(files("jaxserve.evaluation") / "tasks"))
_NEAR = 3  # names that are offered for an unknown one
_PATTERN = "*?["
_HUB = "Hugging Face Hub"  # said where a metric is missing


@dataclass(frozen=True, slots=True)
class Tasks:
    """Loaded tasks, as `lm_eval.evaluator.evaluate` takes them.

    Attributes:
        loaded: {"tasks": by name, "groups": by name, "group_map": names of a group's members by its name}.
    """

    loaded: dict[str, dict[str, Any]]
    own: bool


def load_tasks(names: Sequence[str], include_path: str | None) -> Tasks:
    """Tasks and groups by name, pattern or path of a YAML file.

    Raises ConfigError for a name that nothing has, for a task that cannot be loaded without the network or at all, for one that
    is named twice, and for those that an engine for text cannot run.
    """
    manager, chosen = _find(names, include_path)
    merged: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}, "group_map": {}}
    sources: dict[str, str] = {}
    for name in chosen:
        loaded = _load(manager, name)
        for task in loaded["tasks"]:
            if task in sources:
                raise ConfigError(f"the task {task!r} is named twice: by {sources[task]!r} and by {name!r}", param="tasks")
            sources[task] = name
        for part, entries in merged.items():
            entries.update(loaded[part])
    for name, task in merged["tasks"].items():
        _check(name, task)
    return Tasks(merged, all(_is_own(manager, name) for name in merged["tasks"]))


def list_own(include_path: str | None) -> list[Listed]:
    """The tasks that jaxserve ships and those of the directory, groups first."""
    index = _manager(include_path, everything=False).task_index
    return sorted(_listed(index), key=lambda entry: (entry.kind != "group", entry.name))


def count_others() -> int:
    """How many tasks come with lm-eval itself. Reading their names takes seconds."""
    return len(TaskManager().all_subtasks)


def _listed(index: dict[str, Any]) -> Iterator[Listed]:
    for name, entry in index.items():
        members = (entry.cfg or {}).get("task")
        if isinstance(members, list):
            yield Listed(name, "group", tuple(str(member) for member in members))
        elif entry.cfg is not None:
            yield Listed(name, str(entry.cfg.get("output_type", "")))


def _manager(include_path: str | None, *, everything: bool) -> TaskManager:
    paths = [OWN, *([Path(include_path)] if include_path is not None else [])]
    return TaskManager(include_path=paths, include_defaults=everything)


def _find(names: Sequence[str], include_path: str | None) -> tuple[TaskManager, list[str]]:
    """The harness's own thousands are looked through only for names that are not found elsewhere: reading them takes seconds."""
    manager = _manager(include_path, everything=False)
    if not all(_matches(manager, name) for name in names):
        manager = _manager(include_path, everything=True)
    chosen: list[str] = []
    for name in names:
        found = _matches(manager, name)
        if not found:
            near = difflib.get_close_matches(name, manager.all_tasks, n=_NEAR)
            hint = f"; near it are {', '.join(near)}" if near else "; '--tasks list' prints what there is"
            raise ConfigError(f"there is no task {name!r}{hint}", param="tasks")
        chosen += [match for match in found if match not in chosen]
    return manager, chosen


def _matches(manager: TaskManager, name: str) -> list[str]:
    if any(sign in name for sign in _PATTERN):
        found: list[str] = manager.match_tasks([name])
        tasks = set(manager.all_subtasks)
        return [match for match in found if match in tasks] or found  # a group beside its own tasks would have them twice
    path = Path(name)
    return [name] if name in manager.task_index or (path.suffix == ".yaml" and path.is_file()) else []


def _load(manager: TaskManager, name: str) -> dict[str, dict[str, Any]]:
    """Tasks are other people's files and programs, and anything may be wrong with them: all of it is told in one line."""
    try:
        loaded: dict[str, dict[str, Any]] = manager.load([name])
    except Exception as error:
        if isinstance(error, ConnectionError) or _HUB in str(error):
            raise ConfigError(
                f"the task {name!r} needs data that are not on this machine, and nothing is fetched: {_line(error)}; "
                "download them into Hugging Face's cache first, or use local data",
                param="tasks",
            ) from error
        raise ConfigError(f"the task {name!r} cannot be loaded: {type(error).__name__}: {_line(error)}", param="tasks") from error
    return loaded


def _is_own(manager: TaskManager, name: str) -> bool:
    entry = manager.task_index.get(name)
    return entry is not None and entry.yaml_path is not None and Path(entry.yaml_path).parent == OWN


def _check(name: str, task: Any) -> None:
    if getattr(task, "UNSAFE_CODE", False):
        raise ConfigError(f"the task {name!r} runs code that the model writes, which jaxserve.eval does not do", param="tasks")
    if getattr(task, "MULTIMODAL", False):
        raise ConfigError(f"the task {name!r} has images or sounds, and the model reads text", param="tasks")


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no reason given")


def quiet() -> None:
    for name in ("lm_eval", "datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
