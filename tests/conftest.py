"""Settings of every test: eight virtual CPU devices, quick compilation, no implicit promotion of dtypes and ranks."""

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.xla_flags import xla_flags

# jax reads these when it is first imported. This file does not import it: most unit tests need none of it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {xla_flags(8)}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.update(JAX_NUMPY_DTYPE_PROMOTION="strict", JAX_NUMPY_RANK_PROMOTION="raise")
# What one test has compiled no other compiles again, nor those of the next run: in the place where servers look by default.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "jaxserve"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
# The libraries below lm-eval read these when they are first imported. No test goes to the network.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import hypothesis
import pytest

from tests.support.costs import Costs
from tests.support.fleet_process import ServedByFleet, ray_cluster
from tests.support.serve_process import Served, one_server

# What jax keeps of thousands of programs is looked through whenever rubbish is looked for: a twentieth of the time.
gc.set_threshold(10_000, 20, 10)
hypothesis.settings.register_profile("any machine", deadline=None)  # how fast one is is no property of the code
hypothesis.settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fleet", action="store_true", help="only tests of server processes, each of them a fleet of two replicas")
    parser.addoption("--costs", metavar="FILE", help="write what each test file cost to a JSON file")
    parser.addoption("--write-budget", action="store_true", help="write what this run's tests cost to tests/budget.json")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config), "costs")


# Folders and files of the marker: minutes each, beside others in `make test` that cover the same code.
EXTENDED = (
    "tests/system/benchmarks/",
    "tests/integration/aot/test_kernels.py",
    "tests/contract/kernels/test_mosaic_gpu_compiled.py",
    "tests/integration/engine/test_long_context.py",
    "tests/system/fleet/test_interop.py",
    "tests/system/fleet/test_ray_scaling.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of EXTENDED. With --fleet, select tests that use `served` and skip those for one server."""
    for item in items:
        if item.nodeid.startswith(EXTENDED):
            item.add_marker(pytest.mark.extended)
    if not config.getoption("--fleet"):
        return
    others = [item for item in items if "served" not in getattr(item, "fixturenames", ())]
    items[:] = [item for item in items if "served" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=others)
    for item in items:
        if (marker := item.get_closest_marker("one_server")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"of one server only: {marker.args[0]}"))


@pytest.fixture(scope="session")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Starts servers of their own processes: with --fleet, fleets."""
    if not request.config.getoption("--fleet"):
        yield one_server
        return
    with ray_cluster(tmp_path_factory.mktemp("ray") / "err") as cluster:
        yield ServedByFleet(cluster)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What this Python or machine could not check is said at the end, once for each reason, and not only counted."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        if reason.startswith("NOT CHECKED"):
            terminalreporter.write_line(f"{count} tests {reason}", yellow=True)
