"""From a request's options and the policies to what it is granted: class, deadlines, tokens and pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from jaxserve.config.policies import Policies
from jaxserve.config.windows import longest_sequence
from jaxserve.errors import InvalidRequestError
from jaxserve.types import RequestOptions, ServiceClass

Number = TypeVar("Number", int, float)

MAX_TENANT_CHARS = 128
MAX_SALT_CHARS = 256
_HASHED = "cache_salt"  # and written nowhere: any text will do


@dataclass(frozen=True, slots=True)
class Grant:
    """What one request may take.

    Attributes:
        service_class: its precedence.
        queue_deadline, deadline: clock times by which it must have started and ended; infinite for none.
        own_queue_timeout: whether the request itself said how long it waits.
        max_total_tokens: prompt and outputs together, None for what the context holds.
        max_kv_tokens: tokens of one sequence that the class's and the tenant's pages hold, None for no limit.
        kv_limit: which policy `max_kv_tokens` comes from, for errors.
        max_draft_tokens: guesses that its rows may verify at a step, None for as many as pay.
    """

    service_class: ServiceClass
    queue_deadline: float
    deadline: float
    own_queue_timeout: bool
    max_total_tokens: int | None
    max_kv_tokens: int | None
    kv_limit: str
    max_draft_tokens: int | None


class Budgets:
    """Grants requests what policies allow them.

    Attributes:
        default_class: of requests that name none.
        num_pages: pages that sequences can have together; shares are parts of them.
        windows, max_chunk: as of the KV cache.
    """

    def __init__(
        self,
        policies: Policies,
        default_class: ServiceClass,
        *,
        num_pages: int,
        page_size: int,
        windows: tuple[int | None, ...] = (None,),
        max_chunk: int = 1,
    ) -> None:
        self.policies = policies
        self.default_class = default_class
        self.num_pages = num_pages
        self.page_size = page_size
        self.windows = windows
        self.max_chunk = max_chunk

    def grant(self, options: RequestOptions, arrival: float) -> Grant:
        """What a request that arrived at this clock time, seconds, may take. Raises InvalidRequestError naming the field."""
        check_options(options)
        service_class = _class(options) or self.default_class
        policy = self.policies.of_class(service_class)
        timeout = _smaller(options.timeout, policy.timeout)
        queue_timeout = options.queue_timeout
        if queue_timeout is None:
            queue_timeout = self.policies.queue_timeout(service_class)
        if queue_timeout is not None:
            queue_timeout = _smaller(queue_timeout, timeout)
        max_kv_tokens, kv_limit = self._kv_limit(options.tenant, service_class)
        return Grant(
            service_class=service_class,
            queue_deadline=math.inf if queue_timeout is None else arrival + queue_timeout,
            deadline=math.inf if timeout is None else arrival + timeout,
            own_queue_timeout=options.queue_timeout is not None,
            max_total_tokens=_smaller(options.max_total_tokens, policy.max_total_tokens),
            max_kv_tokens=max_kv_tokens,
            kv_limit=kv_limit,
            max_draft_tokens=_smaller(policy.max_draft_tokens, self.policies.of_tenant(options.tenant).max_draft_tokens),
        )

    def _kv_limit(self, tenant: str, service_class: ServiceClass) -> tuple[int | None, str]:
        """Tokens that fit the pages this tenant's sequences of this class may never exceed, and the policy that says so."""
        shares = (
            (self.policies.of_class(service_class).kv_share, f"kv_share of class {service_class}"),
            (self.policies.of_tenant(tenant).kv_cap, f"kv_cap of tenant {tenant!r}"),
        )
        share, name = min(shares)
        if share == 1.0:
            return None, ""
        pages = int(self.num_pages * share)
        tokens = longest_sequence(self.windows, pages, self.page_size, self.max_chunk)
        return tokens, f"{name}, {share:g} of {self.num_pages} pages of {self.page_size} tokens"


def check_options(options: RequestOptions) -> None:
    """Raise InvalidRequestError naming the field and its limit for a value that no request may have."""
    _check_text("tenant", options.tenant, MAX_TENANT_CHARS)
    _check_text("cache_salt", options.cache_salt, MAX_SALT_CHARS)
    _class(options)
    for name in ("queue_timeout", "timeout"):
        seconds = getattr(options, name)
        if seconds is not None and not (_is_number(seconds) and 0 < seconds < math.inf):
            raise InvalidRequestError(f"{name} must be a finite number of seconds above 0, got {seconds!r}", param=name)
    tokens = options.max_total_tokens
    if tokens is not None and not (isinstance(tokens, int) and _is_number(tokens) and tokens >= 2):
        raise InvalidRequestError(
            f"max_total_tokens must be an integer of at least 2, for a prompt's token and one of output, got {tokens!r}",
            param="max_total_tokens",
        )


def cache_salt(options: RequestOptions) -> str:
    """One salt for tenant and salt: the tenant's length goes first, so that no two pairs give the same."""
    if not options.tenant and not options.cache_salt:
        return ""
    return f"{len(options.tenant)}:{options.tenant}{options.cache_salt}"


def _class(options: RequestOptions) -> ServiceClass | None:
    if options.service_class is None:
        return None
    try:
        return ServiceClass(options.service_class)
    except ValueError as error:
        known = ", ".join(ServiceClass)
        raise InvalidRequestError(
            f"service_class must be one of {known}, got {options.service_class!r}", param="service_class"
        ) from error


def _check_text(name: str, value: object, longest: int) -> None:
    if not isinstance(value, str) or len(value) > longest or not (_is_unicode(value) if name == _HASHED else value.isprintable()):
        shown = repr(value) if not isinstance(value, str) or len(value) <= longest else f"{len(value)} characters"
        kind = "" if name == _HASHED else "printable "
        raise InvalidRequestError(f"{name} must be a string of at most {longest} {kind}characters, got {shown}", param=name)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _smaller(first: Number | None, second: Number | None) -> Number | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
