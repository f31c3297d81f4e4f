"""Ray Serve's own words for how a pool scales: a PoolScaler in its controller, asked ten times a second.

Ray's averages, delays and factors are turned off: they would be a second policy on top.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from jaxserve.config.pool_scaling import PoolScaling
from server.fleet.scaling import SAMPLE_SECONDS, PoolScaler

_LOOK_BACK_SECONDS = 5.0  # that Ray keeps of what replicas said; must be more than between two words


def autoscaling(scaling: PoolScaling, drain_seconds: float) -> AutoscalingConfig:
    """What a pool's deployment is told.

    Args:
        drain_seconds: that a replica may take to end.
    """
    policy = AutoscalingPolicy(
        policy_function=PoolScaler,
        policy_kwargs={
            "settings": asdict(scaling.settings),
            "schedule": scaling.schedule.as_json(),
            "drain_seconds": drain_seconds,
        },
    )
    with warnings.catch_warnings():  # the variable that is to replace metrics_interval_s is the cluster's, not a deployment's
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(
            min_replicas=scaling.settings.min_replicas,
            max_replicas=scaling.settings.max_replicas,
            metrics_interval_s=SAMPLE_SECONDS,
            look_back_period_s=_LOOK_BACK_SECONDS,
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            policy=policy,
        )
