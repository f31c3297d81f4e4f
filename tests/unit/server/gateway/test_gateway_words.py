"""What is told to clients and other processes: routes, refusals, headers, messages."""

from typing import get_args

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.config.keys_file import TenantLimits
from jaxserve.config.server import ServerConfig
from jaxserve.engine.remote.codec import decoder, encode
from jaxserve.errors import BudgetError, ConfigError, DrainingError, InvalidRequestError, JaxserveError, RateLimitError
from server.gateway.ledger import LedgerState, RemoteUsageLedger
from server.gateway.messages import (
    Claim,
    Claimed,
    Done,
    Entry,
    Forget,
    Granted,
    Keep,
    Level,
    Levels,
    Listed,
    ListKept,
    Message,
    Peek,
    Refused,
    Release,
    Reply,
    Reserve,
    Revoke,
    Revoked,
    Settle,
    Share,
    Wanted,
    Watch,
)
from server.gateway.refusals import BUSY_SECONDS, duration, rate_limit_headers, refusal
from server.gateway.routes import grpc_access, http_access

LIMITS = TenantLimits(rpm=3, tpm=100, max_concurrent=1)


@pytest.mark.parametrize(
    ("path", "access"),
    [
        ("/health", "open"),
        ("/health/deep", "open"),
        ("/healthy", "key"),
        ("/ready", "open"),
        ("/metrics", "open"),
        ("/docs", "open"),
        ("/openapi.json", "open"),
        ("/version", "open"),
        ("/v1/models", "key"),
        ("/v1/chat/completions", "key"),
        ("/tokenize", "key"),
        ("/no/such/path", "key"),
        ("", "key"),
        ("/reset_prefix_cache", "admin"),
        ("/debug/trace", "admin"),
        ("/debug/engine", "admin"),
        ("//debug/trace", "key"),
    ],
)
def test_http_paths(path: str, access: str) -> None:
    assert http_access(path) == access


@pytest.mark.parametrize(
    ("method", "access"),
    [
        ("/grpc.health.v1.Health/Check", "open"),
        ("/grpc.health.v1.Health/Watch", "open"),
        ("/jaxserve.v1.Inference/Generate", "key"),
        ("/jaxserve.v1.Admin/Drain", "admin"),
        ("/inference.GRPCInferenceService/ServerLive", "open"),
        ("/inference.GRPCInferenceService/ModelInfer", "key"),
        ("/vllm.grpc.engine.VllmEngine/HealthCheck", "open"),
        ("/vllm.grpc.engine.VllmEngine/Generate", "key"),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "key"),
    ],
)
def test_grpc_methods(method: str, access: str) -> None:
    assert grpc_access(method) == access


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (20_000, "20ms"),
        (999_001, "1s"),
        (1_204_000, "1.204s"),
        (59_999_001, "1m0s"),
        (360_000_000, "6m0s"),
        (3_661_500_000, "61m1.5s"),
    ],
)
def test_durations_are_as_openai_writes_them(microseconds: int, text: str) -> None:
    assert duration(microseconds) == text


def test_headers_of_a_limited_tenant() -> None:
    assert rate_limit_headers(None) == {}
    assert rate_limit_headers(Levels()) == {}
    assert rate_limit_headers(Levels(Level(3, 2, 20_000_000), Level(100, 0, 60_000_000))) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "20s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1m0s",
    }


@pytest.mark.parametrize(
    ("refused", "kind", "seconds", "words"),
    [
        (Refused("tokens", 1_204_000, 100, 60, 50, Levels()), RateLimitError, 1.204, "tokens a minute: limit 100, used 60, req"),
        (Refused("requests", 20_000, 3, 3, 1, Levels()), RateLimitError, 0.02, "again in 0.020s"),
        (Refused("concurrent", None, 2, 2, 1, Levels()), RateLimitError, BUSY_SECONDS, "2 requests running"),
        (Refused("daily", 3_600_000_000, 100, 60, 50, Levels()), BudgetError, 3600.0, "tokens of the day"),
        (Refused("size", None, 100, 0, 101, Levels()), InvalidRequestError, None, "101 tokens"),
    ],
)
def test_refusals(refused: Refused, kind: type[JaxserveError], seconds: float | None, words: str) -> None:
    error = refusal(refused, "acme")
    assert (type(error), error.retry_after) == (kind, seconds)
    assert words in error.message
    assert "'acme'" in error.message


MESSAGES: list[tuple[Message, object]] = [
    (Reserve("a", "r1", "acme", LIMITS, 10, 1, 15), Granted(Levels(Level(3, 2, 20_000_000), Level(100, 75, 15_000_000)))),
    (
        Reserve("a", "r2", "acme", LIMITS, 10, 1, None),
        Refused("tokens", 15_000_000, 100, 25, 100, Levels(Level(3, 2, 20_000_000), Level(100, 75, 15_000_000))),
    ),
    (Settle("r1", 10, 5, 1), Done()),
    (Peek("acme", LIMITS), Levels(Level(3, 2, 20_000_000), Level(100, 85, 9_000_000))),
    (Claim("a", "a!", "acme", "acme", "k", b"1"), Claimed("new", "a")),
    (Claim("b", "b!", "acme", "acme", "k", b"1"), Claimed("running", "a", run="a!")),
    (Watch("a"), Wanted({"a!": 0})),
    (Share("a!", "acme", "k", 0, [b"\xffres", b"ult"]), Done()),
    (Claim("b", "b!", "acme", "acme", "k", b"1", 1), Claimed("running", "a", run="a!", pieces=[b"ult"])),
    (Keep("a!", "acme", "k", b"\xffresult"), Done()),
    (Claim("b", "b!", "acme", "acme", "k", b"1"), Claimed("done", result=b"\xffresult", run="a!")),
    (Claim("b", "b!", "acme", "acme", "l", b"1"), Claimed("new", "b")),
    (Release("b!", "acme", "l"), Done()),
    (Claim("c", "c!", "acme", "acme", "l", b"2"), Claimed("new", "c")),
    (Forget("c"), Done()),
    (Claim("d", "d!", "acme", "acme", "l", b"3"), Claimed("new", "d")),
    (ListKept("acme", "acme", "l"), Listed([Entry("l", "running", 0.0)])),
    (Revoke("acme", "l"), Revoked(True)),
    (Watch("d"), Wanted({}, ["d!"])),
    (Claim("d", "e!", "acme", "acme", "l", b"", begin="never"), Claimed("none")),
]


async def test_every_message_gets_over_the_wire_and_back() -> None:
    service = LedgerState(VirtualClock(), 0.0)

    async def call(message: Message) -> Reply:
        return service.handle(message)

    to_ledger, from_ledger = decoder(Message), decoder(Reply)

    async def over_the_wire(message: Message) -> Reply:
        reply: Reply = from_ledger.decode(encode(await call(to_ledger.decode(encode(message)))))
        return reply

    remote = RemoteUsageLedger(over_the_wire)
    assert [await remote.ask(message) for message, _ in MESSAGES] == [answer for _, answer in MESSAGES]
    assert {type(message) for message, _ in MESSAGES} == set(get_args(Message))


async def test_what_is_told_arrives_and_a_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    service = LedgerState(VirtualClock(), 0.0)
    broken = False

    async def call(message: Message) -> Reply:
        if broken:
            raise DrainingError("nobody is there")
        return service.handle(message)

    remote = RemoteUsageLedger(call)
    await remote.ask(Claim("a", "a!", "acme", "acme", "k", b"1"))
    remote.tell(Release("a!", "acme", "k"))
    await remote.close()
    assert await remote.ask(Claim("b", "b!", "acme", "acme", "k", b"1")) == Claimed("new", "b")
    assert not caplog.records
    broken = True
    remote.tell(Release("b!", "acme", "k"))
    await remote.close()
    assert "nobody is there" in caplog.text


def test_a_lost_front_end_is_forgotten() -> None:
    service = LedgerState(VirtualClock(), 0.0)
    claim = Claim("a", "a!", "acme", "acme", "k", b"1")
    assert service.handle(claim) == Claimed("new", "a")
    service.forget(Forget("a"))
    assert service.handle(claim) == Claimed("new", "a")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert ServerConfig(host=host).keys is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", ""])
def test_other_addresses_need_keys_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match="--allow-unauthenticated") as info:
        ServerConfig(host=host)
    assert info.value.param == "allow_unauthenticated"
    assert ServerConfig(host=host, keys="keys.toml").host == host
    assert ServerConfig(host=host, allow_unauthenticated=True).host == host
