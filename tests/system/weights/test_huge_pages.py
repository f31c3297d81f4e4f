"""Weights on CPUs lie in huge pages: steps of few rows are as fast as weights are read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not SETTING.is_file() or "[never]" in SETTING.read_text(), reason="there are no huge pages"
)


@pytest.fixture(scope="module")
def shares():
    """Shares of tables in huge pages, in a process of its own: memory that was used before may lie in small ones."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.huge_pages"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    if found["plain"] < 0.75:
        pytest.skip(f"the system has huge pages for {found['plain']:.0%} of a plain mapping")
    return found


@pytest.mark.parametrize("what", ["read into", "dummy", "packed dummy"])
def test_weights_lie_in_huge_pages(shares, what):
    assert shares[what] >= 0.5  # the system may have run out of some
