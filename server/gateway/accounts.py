"""What tenants may take and have taken: charged by estimate when a request starts, by what it took when it is over."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from jaxserve.config.keys_file import TenantLimits
from server.gateway.account import FIRST_GUESS, Account, Amounts, estimate_of, learned, need_of, too_large
from server.gateway.messages import Granted, Levels, Refused, Reserve, Settle


@dataclass(frozen=True, slots=True)
class _Reservation:
    """What was charged, to whom, and on which day."""

    owner: str
    tenant: str
    charged: Amounts
    day: int


@dataclass(slots=True)
class Accounts:
    """Accounts of all tenants. Times are microseconds of a monotonic clock.

    Args:
        epoch: Unix time, microseconds, at time 0. Days are counted from it by the monotonic clock: setting the machine's clock
            refills nothing.
    """

    epoch: int
    _accounts: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    _means: dict[str, float] = field(default_factory=dict)  # tokens of one output, learned
    _reservations: dict[str, _Reservation] = field(default_factory=dict)

    def reserve(self, ask: Reserve, now: int) -> Granted | Refused:
        """Charge a request by estimate, or say what stands against it and charge nothing."""
        account = self._account(ask.tenant, ask.limits, now)
        tokens = estimate_of(ask, self._means.get(ask.tenant, FIRST_GUESS))
        need = need_of(ask, tokens)
        refused = too_large(ask, tokens, account.levels(now)) or account.refused(ask.limits, need, self.epoch, now)
        if refused is not None:
            return refused
        account.take(need, now)
        self._reservations[ask.reservation] = _Reservation(ask.owner, ask.tenant, need, account.day)
        return Granted(account.levels(now))

    def settle(self, told: Settle, now: int) -> None:
        """Charge what a request took instead of its estimate; the second time for a reservation does nothing."""
        reservation = self._reservations.pop(told.reservation, None)
        if reservation is None:
            return
        mean = self._means.get(reservation.tenant, FIRST_GUESS)
        self._means[reservation.tenant] = learned(mean, told.output_tokens, told.finished)
        self._close(reservation, told.prompt_tokens + told.output_tokens, now)

    def peek(self, tenant: str, limits: TenantLimits, now: int) -> Levels:
        return self._account(tenant, limits, now).levels(now)

    def forget(self, owner: str, now: int) -> None:
        """A front end is gone. What its requests took is not known: their estimates stay charged."""
        for name in [name for name, one in self._reservations.items() if one.owner == owner]:
            reservation = self._reservations.pop(name)
            self._close(reservation, reservation.charged.day, now)

    def _close(self, reservation: _Reservation, tokens: int, now: int) -> None:
        account, charged = self._accounts[reservation.tenant], reservation.charged
        difference = tokens - charged.day
        account.take(
            Amounts(
                tokens=difference if charged.requests else 0,
                day=difference if account.day == reservation.day else 0,
                slots=-charged.slots,
            ),
            now,
        )

    def _account(self, tenant: str, limits: TenantLimits, now: int) -> Account:
        account = self._accounts[tenant]
        account.renew(limits, self.epoch, now)
        return account
