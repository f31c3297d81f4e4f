"""Results under idempotency keys: claimed once, kept for a while and within bounds."""

import pytest

from server.gateway.messages import Claim, Claimed
from server.gateway.results import KEPT_SECONDS, MAX_KEPT_BYTES, MAX_RESULT_BYTES, Results

NAME = ("acme", "k")


def claim(
    results: Results, *, now: float = 0.0, owner: str = "a", scope: str = "acme", key: str = "k", body: bytes = b"1"
) -> Claimed:
    return results.claim(Claim(owner, f"{owner}!", scope, key, body), now)


def test_a_key_runs_once_and_its_result_comes_back() -> None:
    results = Results()
    assert claim(results).state == "new"
    assert claim(results, owner="b") == Claimed("running", "a")
    assert claim(results, body=b"2").state == "other"
    results.keep("a!", NAME, b"answer", 0.0)
    assert claim(results, owner="b") == Claimed("done", result=b"answer")
    assert claim(results, body=b"2").state == "other"
    assert claim(results, scope="globex").state == "new"
    assert claim(results, key="other").state == "new"


def test_a_released_key_runs_again() -> None:
    results = Results()
    claim(results)
    results.release("a!", NAME)
    assert claim(results, body=b"2").state == "new"


def test_only_the_claim_itself_is_kept_or_released() -> None:
    results = Results()
    claim(results)
    results.release("b!", NAME)
    results.keep("b!", NAME, b"forged", 0.0)
    assert claim(results, owner="b") == Claimed("running", "a")
    results.keep("a!", NAME, b"answer", 0.0)
    results.release("a!", NAME)
    assert claim(results).state == "done"


def test_claims_of_a_lost_front_end_are_given_up() -> None:
    results = Results()
    claim(results)
    claim(results, key="done")
    claim(results, key="else", owner="b")
    results.keep("a!", ("acme", "done"), b"answer", 0.0)
    results.forget("a")
    assert [claim(results, key=key).state for key in ("k", "done", "else")] == ["new", "done", "running"]


def test_results_expire() -> None:
    results = Results()
    claim(results)
    results.keep("a!", NAME, b"answer", 5.0)
    assert claim(results, now=5.0 + KEPT_SECONDS - 0.1).state == "done"
    assert claim(results, now=5.0 + KEPT_SECONDS, body=b"2").state == "new"
    assert results.kept_bytes == 0


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    results = Results()
    for number in range(40):
        claim(results, key=str(number))
        results.keep("a!", ("acme", str(number)), bytes(MAX_RESULT_BYTES // 2), 0.0)
        assert results.kept_bytes <= MAX_KEPT_BYTES
    assert claim(results, key="39").state == "done"
    assert claim(results, key="0").state == "new"


@pytest.mark.parametrize(("size", "state"), [(MAX_RESULT_BYTES, "done"), (MAX_RESULT_BYTES + 1, "new")])
def test_a_long_result_is_not_kept(size: int, state: str) -> None:
    results = Results()
    claim(results)
    results.keep("a!", NAME, bytes(size), 0.0)
    assert claim(results).state == state


def test_many_small_ones_count_too() -> None:
    results = Results()
    claim(results)
    results.keep("a!", NAME, b"", 0.0)
    assert results.kept_bytes > 0
