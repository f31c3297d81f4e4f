"""One call: what its requests are called, and what is reserved for them."""

from dataclasses import replace

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.config.keys_file import TenantLimits
from jaxserve.errors import InvalidRequestError
from jaxserve.types import RequestOptions
from server.gateway.call import MOST_TOKENS, Call, JobSize
from server.gateway.keys import ANYBODY, Principal
from server.gateway.ledger import LedgerState, RemoteUsageLedger, UsageLedger
from server.gateway.messages import Message, Reply


def principal(tenant: str, **limits: int) -> Principal:
    return replace(ANYBODY, tenant=tenant, limits=TenantLimits(**limits))


def call_of(who: Principal, ledger: UsageLedger | None = None) -> Call:
    return Call("r", who, "front", ledger or remote_ledger(), None)


def remote_ledger() -> RemoteUsageLedger:
    service = LedgerState(VirtualClock(), 0.0)

    async def call(message: Message) -> Reply:
        return service.handle(message)

    return RemoteUsageLedger(call)


async def test_no_two_tenants_give_requests_the_same_name() -> None:
    names = [("a", "b:c"), ("a:b", "c"), ("a:b:c", ""), ("1:a", "b:c"), ("a", "1:b:c"), ("b", "c")]
    assert len({call_of(principal(tenant)).engine_id(name) for tenant, name in names}) == len(names)
    assert call_of(ANYBODY).engine_id("b:c") == "b:c"


@pytest.mark.parametrize("asked", [MOST_TOKENS, 2**63, 2**64, 10**30])
async def test_outputs_of_any_length_may_be_asked_for(asked: int) -> None:
    size = JobSize(prompt_tokens=2**24, prompts=2**24, sequences=128, max_tokens=asked, delivers_output=True)
    with pytest.raises(InvalidRequestError, match="more than the 10000") as refused:
        await call_of(principal("acme", tpm=10_000)).start("c", "m", RequestOptions(), size)
    assert refused.value.param == "max_tokens"
    call = call_of(principal("acme", max_concurrent=1))
    (await call.start("c", "m", RequestOptions(), size)).ended(None)
