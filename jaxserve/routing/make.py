"""Routers by name, as settings name them."""

from __future__ import annotations

from typing import Literal

from jaxserve.routing.least_loaded import LeastLoaded
from jaxserve.routing.prefix_router import PrefixRouter
from jaxserve.routing.prefix_settings import DEFAULT_PREFIX_SETTINGS, PrefixSettings
from jaxserve.routing.random_router import RandomRouter
from jaxserve.routing.round_robin import RoundRobin
from jaxserve.routing.router import Router

RouterName = Literal["prefix", "least_loaded", "round_robin", "random"]


def make_router(name: RouterName, load_bound: float = 1.0 + DEFAULT_PREFIX_SETTINGS.slack, seed: int = 0) -> Router:
    """A router that knows no replicas yet.

    `load_bound` is of "prefix": times its part of all work beyond which a replica gets nothing more; `seed` of "random".
    """
    match name:
        case "prefix":
            return PrefixRouter(PrefixSettings(slack=load_bound - 1.0))
        case "least_loaded":
            return LeastLoaded()
        case "round_robin":
            return RoundRobin()
        case "random":
            return RandomRouter(seed)
