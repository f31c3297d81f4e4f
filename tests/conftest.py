"""Settings of every test: eight virtual CPU devices, quick compilation, no implicit promotion of dtypes and ranks."""

import os
from collections import Counter

# jax reads these when it is first imported, so they are set before anything else.
# Tests compile far more than they run: without LLVM's optimisations a program takes half as long to compile.
FLAGS = ("--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0")
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *FLAGS)).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The libraries below lm-eval read these when they are first imported. No test goes to the network.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What this Python or machine could not check is said at the end, once for each reason, and not only counted."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.items():
        if reason.startswith("NOT CHECKED"):
            terminalreporter.write_line(f"{count} tests {reason}", yellow=True)
