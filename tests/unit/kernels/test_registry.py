"""Which implementation is chosen, what is said of those passed over, and what a name that cannot do it gets."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import jax
import pytest

from pallas_kernels.registry import Implementation, Target, choose, later

HOPPER, AMPERE, CPU = Target("gpu", (9, 0)), Target("gpu", (8, 0)), Target("cpu")


def hopper_only(target):
    return None if target.capability == (9, 0) else f"it needs Hopper, not {target}"


def small(problem):
    return None if problem <= 10 else f"{problem} is above 10"


def even(problem):
    return "it is slow at odd numbers" if problem % 2 else None


TABLE: tuple[Implementation[str, int], ...] = (
    Implementation("dreamt", "dreamt", limits="all numbers", interpreted=True),
    Implementation("fast", "fast", limits="numbers to 10", runs_on=hopper_only, supports=small),
    Implementation("pairs", "pairs", limits="all numbers", suits=even),
    Implementation("plain", "plain", limits="all numbers"),
)


@pytest.mark.parametrize(
    ("name", "target", "problem", "chosen"),
    [
        (None, HOPPER, 4, "fast"),
        (None, HOPPER, 5, "fast"),
        (None, AMPERE, 4, "pairs"),
        (None, AMPERE, 5, "plain"),
        (None, HOPPER, 12, "pairs"),
        (None, HOPPER, 13, "plain"),
        (None, CPU, 4, "pairs"),
        (None, None, 4, "pairs"),
        ("fast", HOPPER, 4, "fast"),
        ("pairs", CPU, 5, "pairs"),
        ("plain", HOPPER, 4, "plain"),
        ("dreamt", CPU, 4, "dreamt"),
    ],
)
def test_choice(name, target, problem, chosen):
    assert choose("op", TABLE, name, target, problem) == chosen


@pytest.mark.parametrize(
    ("name", "target", "problem", "message"),
    [
        ("fast", CPU, 4, "op cannot run in 'fast': it needs Hopper, not cpu; it supports numbers to 10"),
        ("fast", HOPPER, 11, "op cannot run in 'fast': 11 is above 10; it supports numbers to 10"),
        ("quick", HOPPER, 4, "op has no implementation 'quick'; it has: dreamt, fast, pairs, plain"),
    ],
)
def test_a_name_that_cannot_do_it(name, target, problem, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        choose("op", TABLE, name, target, problem)


def test_nothing_can_do_it():
    with pytest.raises(ValueError, match=r"op has no implementation for this on .* 8\.0: not in fast: it needs Hopper"):
        choose("op", TABLE[:2], None, AMPERE, 4)


def test_one_line_for_each_reason(caplog):
    caplog.set_level(logging.INFO, logger="pallas_kernels.registry")  # another test may have set its own
    for problem in (21, 21, 22, 4):
        choose("logged", TABLE, None, HOPPER, problem)
        choose("logged", TABLE, None, CPU, problem)
        choose("logged", TABLE, "plain", HOPPER, problem)
    hopper = "gpu of compute capability 9.0"
    assert [record.message for record in caplog.records] == [
        f"logged runs in plain on {hopper}: not in fast: 21 is above 10; not in pairs: it is slow at odd numbers",
        f"logged runs in pairs on {hopper}: not in fast: 22 is above 10",
    ]


@pytest.mark.parametrize(
    ("device", "target"),
    [
        (SimpleNamespace(platform="gpu", compute_capability="9.0"), HOPPER),
        (SimpleNamespace(platform="cuda", compute_capability="12.1"), Target("gpu", (12, 1))),
        (SimpleNamespace(platform="rocm", compute_capability="gfx942"), Target("gpu")),
        (jax.devices("cpu")[0], CPU),
    ],
    ids=["gpu", "cuda", "rocm", "cpu"],
)
def test_target_of_a_device(device, target):
    assert Target.of(device) == target


def test_a_later_module_is_imported_when_it_is_called():
    sys.modules.pop("colorsys", None)
    convert = later("colorsys", "rgb_to_hls")
    assert "colorsys" not in sys.modules
    assert convert(1.0, g=1.0, b=1.0) == (0.0, 1.0, 0.0)
