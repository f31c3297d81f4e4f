"""What the dataclasses refuse."""

import pytest

from jaxserve.config.fields import RecordConfig, SchedulerConfig
from jaxserve.errors import ConfigError


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.1), (-0.1, 0.1), (0.1, 1.0)])
def test_crossed_watermarks_are_refused_with_both_numbers(low, high):
    with pytest.raises(ConfigError, match=f"low_watermark {low} and high_watermark {high}"):
        SchedulerConfig(low_watermark=low, high_watermark=high)


def test_fewer_than_no_steps_cannot_be_recorded():
    with pytest.raises(ConfigError, match="record_steps must be at least 0, got -1"):
        RecordConfig(record_steps=-1)
