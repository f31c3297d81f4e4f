"""How an operation finds its implementation: a table in the operation's folder, preferred first, one entry a kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, TypeVar, cast

import jax

logger = logging.getLogger(__name__)

Function = TypeVar("Function")
Problem = TypeVar("Problem")


class KernelError(ValueError):
    """An implementation was asked for by name, and there is none or it cannot do this."""


@dataclass(frozen=True, slots=True)
class Target:
    """The device that a program is for; it need not be one of the process that traces the program.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        capability: CUDA compute capability, (9, 0) for Hopper; None for what is not an NVIDIA GPU.
    """

    platform: str
    capability: tuple[int, int] | None = None

    @classmethod
    def of(cls, device: jax.Device) -> Target:
        """The target that a device is, be it real or a topology's."""
        platform = "gpu" if device.platform in ("gpu", "cuda", "rocm") else device.platform
        numbers = str(getattr(device, "compute_capability", "")).split(".")
        if platform == "gpu" and len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            return cls(platform, (int(numbers[0]), int(numbers[1])))
        return cls(platform)

    def __str__(self) -> str:
        if self.capability is None:
            return self.platform
        return f"{self.platform} of compute capability {self.capability[0]}.{self.capability[1]}"


def anywhere(target: Target) -> None:
    """Runs on every device."""


def everything(problem: Any) -> None:
    """Supports, or suits, every problem."""


@dataclass(frozen=True, slots=True)
class Implementation(Generic[Function, Problem]):
    """One way to compute an operation. Each of its three questions is answered by None for yes, else by the reason why not.

    Attributes:
        name: what callers write to ask for it.
        function: takes the operation's arguments, already checked.
        limits: what it supports, for people; completes "supports ...".
        checked: how it is known to be right, for people.
        runs_on: whether it runs on a device.
        supports: whether it computes a problem, from shapes, dtypes and options.
        suits: whether it is picked for a problem that it supports when the caller names none.
        interpreted: whether it runs a kernel of another device slowly on CPUs; such a one is never picked.
        for_target: whether `function` takes the `target` too, because it compiles for it by itself.
    """

    name: str
    function: Function
    limits: str
    checked: str = ""
    runs_on: Callable[[Target], str | None] = anywhere
    supports: Callable[[Problem], str | None] = everything
    suits: Callable[[Problem], str | None] = everything
    interpreted: bool = False
    for_target: bool = False

    def on(self, target: Target) -> Function:
        """The function for a device."""
        if not self.for_target:
            return self.function
        bound: Any = partial(cast("Callable[..., Any]", self.function), target=target)
        return cast("Function", bound)


def later(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of a module that is imported at the first call: a kernel's compiler costs those who never use it."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(__import__(module, globals(), None, [name]), name)(*arguments, **options)

    return call


def choose(
    operation: str,
    table: Sequence[Implementation[Function, Problem]],
    name: str | None,
    target: Target | None,
    problem: Problem,
) -> Function:
    """Return the function called `name`, or for None the first of `table` that runs on the target and suits the problem.

    What is passed over on a GPU is logged, once for each reason. The target is the default device unless given.

    Raises:
        KernelError: there is no such implementation, or it cannot do this; the message says what there is, or what it supports.
        ValueError: no implementation can.
    """
    target = Target.of(jax.devices()[0]) if target is None else target
    if name is not None:
        return _named(operation, table, name, target, problem).on(target)
    entry, passed = pick(operation, table, target, problem)
    if passed and target.platform == "gpu":
        _log_once(f"{operation} runs in {entry.name} on {target}: {'; '.join(passed)}")
    return entry.on(target)


def pick(
    operation: str, table: Sequence[Implementation[Function, Problem]], target: Target, problem: Problem
) -> tuple[Implementation[Function, Problem], tuple[str, ...]]:
    """Return the first of `table` that runs on the target and suits the problem, and why each one before it does not.

    Raises ValueError: none does.
    """
    passed: list[str] = []
    for entry in table:
        if entry.interpreted:
            continue
        reason = entry.runs_on(target) or entry.supports(problem) or entry.suits(problem)
        if reason is None:
            return entry, tuple(passed)
        passed.append(f"not in {entry.name}: {reason}")
    raise ValueError(f"{operation} has no implementation for this on {target}: {'; '.join(passed)}")


def _named(
    operation: str, table: Sequence[Implementation[Function, Problem]], name: str, target: Target, problem: Problem
) -> Implementation[Function, Problem]:
    for entry in table:
        if entry.name == name:
            reason = entry.runs_on(target) or entry.supports(problem)
            if reason is not None:
                raise KernelError(f"{operation} cannot run in {name!r}: {reason}; it supports {entry.limits}")
            return entry
    raise KernelError(f"{operation} has no implementation {name!r}; it has: {', '.join(entry.name for entry in table)}")


@cache
def _log_once(message: str) -> None:
    logger.info("%s", message)
