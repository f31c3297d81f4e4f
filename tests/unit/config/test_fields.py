"""What the dataclasses refuse."""

import pytest

from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import ConfigError


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.1), (-0.1, 0.1), (0.1, 1.0)])
def test_crossed_watermarks_are_refused_with_both_numbers(low, high):
    with pytest.raises(ConfigError, match=f"low_watermark {low} and high_watermark {high}"):
        SchedulerConfig(low_watermark=low, high_watermark=high)
