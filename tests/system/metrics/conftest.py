"""The fixtures of tests/integration/metrics."""

from tests.integration.metrics.conftest import config, watched

__all__ = ["config", "watched"]
