"""What service classes and tenants may take, the same for engine and simulator; `policies_file` reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from jaxserve.errors import ConfigError
from jaxserve.types import ServiceClass

ANY_TENANT = "*"
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
QUEUE_TIMEOUT = 30.0  # seconds, of interactive requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPolicy:
    """Budgets of one service class.

    Attributes:
        queue_timeout: seconds a request may wait for its first step; None for any time. "default": 30 for the interactive
            classes, any time for batch.
        timeout: seconds a request may take in all; None for any time.
        max_total_tokens: prompt and output tokens of a request's sequences together; None for what the context holds.
        kv_share: share of the KV pages, above 0, beyond which no further sequence of the class starts.
        max_draft_tokens: guesses that a row may verify at a step; 0 for none, None for as many as pay.
    """

    queue_timeout: float | Literal["default"] | None = "default"
    timeout: float | None = None
    max_total_tokens: int | None = None
    kv_share: float = 1.0
    max_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """What a tenant may take.

    Attributes:
        weight: its share of token-work relative to other tenants', from 0.001 to 1000.
        kv_share: its quota, as a share of KV pages and of slots. It may exceed it while at least `burst_headroom` stays free.
        kv_cap: the share that it never exceeds.
        burst_headroom: share of pages and of slots that its sequences beyond the quota leave free for others.
        prefill_reserve: share of a step's tokens that others leave it while it has a prompt to compute.
        max_draft_tokens: as of a class; the smaller one counts.
    """

    weight: float = 1.0
    kv_share: float = 1.0
    kv_cap: float = 1.0
    burst_headroom: float = 0.2
    prefill_reserve: float = 0.0
    max_draft_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Policies of every class and tenant.

    Attributes:
        classes: by class; missing ones get the defaults.
        tenants: by name; "*" is everybody else's.

    Raises ConfigError naming the conflicting numbers.
    """

    classes: dict[ServiceClass, ClassPolicy] = field(default_factory=dict)
    tenants: dict[str, TenantPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for service_class, budget in self.classes.items():
            _check_class(f"classes.{service_class}", budget)
        for name, tenant in self.tenants.items():
            _check_tenant(f"tenants.{name}", tenant)
        reserved = sum(tenant.prefill_reserve for tenant in self.tenants.values())
        if reserved > 1.0:
            shares = ", ".join(f"{name} {tenant.prefill_reserve:g}" for name, tenant in self.tenants.items())
            raise ConfigError(
                f"policies: prefill_reserve adds up to {reserved:g}, more than a step has (1): {shares}", param="policies"
            )

    def of_class(self, service_class: ServiceClass) -> ClassPolicy:
        return self.classes.get(service_class) or ClassPolicy()

    def queue_timeout(self, service_class: ServiceClass) -> float | None:
        """Seconds that a request of the class may wait, None for any time."""
        timeout = self.of_class(service_class).queue_timeout
        if timeout == "default":
            return None if service_class is ServiceClass.BATCH else QUEUE_TIMEOUT
        return timeout

    def of_tenant(self, name: str) -> TenantPolicy:
        return self.tenants.get(name) or self.tenants.get(ANY_TENANT) or TenantPolicy()


def _check_class(name: str, policy: ClassPolicy) -> None:
    for limit in ("queue_timeout", "timeout", "max_total_tokens"):
        value = getattr(policy, limit)
        if isinstance(value, int | float) and not 0 < value < math.inf:
            raise ConfigError(f"policies: {name}.{limit} must be above 0 or null, got {value}", param="policies")
    _check_drafts(name, policy.max_draft_tokens)
    if not 0.0 < policy.kv_share <= 1.0:
        raise ConfigError(f"policies: {name}.kv_share must be in (0, 1], got {policy.kv_share}", param="policies")


def _check_tenant(name: str, policy: TenantPolicy) -> None:
    if not MIN_WEIGHT <= policy.weight <= MAX_WEIGHT:
        raise ConfigError(
            f"policies: {name}.weight must be between {MIN_WEIGHT:g} and {MAX_WEIGHT:g}, got {policy.weight}", param="policies"
        )
    _check_drafts(name, policy.max_draft_tokens)
    for share in ("burst_headroom", "prefill_reserve"):
        if not 0.0 <= getattr(policy, share) < 1.0:
            raise ConfigError(f"policies: {name}.{share} must be in [0, 1), got {getattr(policy, share)}", param="policies")
    if not 0.0 < policy.kv_share <= policy.kv_cap <= 1.0:
        raise ConfigError(
            f"policies: {name} must satisfy 0 < kv_share <= kv_cap <= 1, "
            f"got kv_share {policy.kv_share} and kv_cap {policy.kv_cap}",
            param="policies",
        )


def _check_drafts(name: str, most: int | None) -> None:
    if most is not None and most < 0:
        raise ConfigError(f"policies: {name}.max_draft_tokens must be at least 0 or null, got {most}", param="policies")
