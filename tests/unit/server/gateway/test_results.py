"""Results under idempotency keys: claimed once, kept for a while and within bounds."""

import pytest

from server.gateway.messages import Begin, Claim, Claimed, Entry, Keep, Listed, ListKept, Share, Wanted
from server.gateway.results import (
    KEPT_SECONDS,
    MAX_ACCOUNT_BYTES,
    MAX_ACCOUNT_RESULTS,
    MAX_KEPT_BYTES,
    MAX_RESULT_BYTES,
    WANTED_SECONDS,
    Results,
)

NAME = ("acme", "k")


def claim(
    results: Results,
    *,
    now: float = 0.0,
    owner: str = "a",
    account: str | None = None,
    scope: str = "acme",
    key: str = "k",
    body: bytes = b"1",
) -> Claimed:
    return results.claim(Claim(owner, f"{owner}!", scope if account is None else account, scope, key, body), now)


def kept(results: Results, scope: str, key: str, size: int, account: str | None = None) -> None:
    """Let a request run to its end."""
    assert claim(results, account=account, scope=scope, key=key).state == "new"
    results.keep(Keep("a!", scope, key, bytes(size)), 0.0)


def test_a_key_runs_once_and_its_result_comes_back() -> None:
    results = Results()
    assert claim(results).state == "new"
    assert claim(results, owner="b") == Claimed("running", "a", run="a!")
    assert claim(results, body=b"2").state == "other"
    results.keep(Keep("a!", *NAME, b"answer"), 0.0)
    assert claim(results, owner="b") == Claimed("done", result=b"answer", run="a!")
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
    results.keep(Keep("b!", *NAME, b"forged"), 0.0)
    assert claim(results, owner="b") == Claimed("running", "a", run="a!")
    results.keep(Keep("a!", *NAME, b"answer"), 0.0)
    results.release("a!", NAME)
    assert claim(results).state == "done"


def test_claims_of_a_lost_front_end_are_given_up() -> None:
    results = Results()
    claim(results)
    claim(results, key="done")
    claim(results, key="else", owner="b")
    results.keep(Keep("a!", "acme", "done", b"answer"), 0.0)
    results.forget("a")
    assert [claim(results, key=key).state for key in ("k", "done", "else")] == ["new", "done", "running"]


def test_results_expire() -> None:
    results = Results()
    claim(results)
    results.keep(Keep("a!", *NAME, b"answer"), 5.0)
    assert claim(results, now=5.0 + KEPT_SECONDS - 0.1).state == "done"
    assert claim(results, now=5.0 + KEPT_SECONDS, body=b"2").state == "new"
    assert results.kept_bytes == 0


def test_an_accounts_oldest_results_make_room_for_its_own() -> None:
    results = Results()
    for number in range(40):
        kept(results, "acme", str(number), MAX_RESULT_BYTES // 2)
        assert results.kept_bytes <= MAX_ACCOUNT_BYTES
    assert claim(results, key="39").state == "done"
    assert claim(results, key="0").state == "new"


@pytest.mark.parametrize(("number", "size"), [(MAX_ACCOUNT_RESULTS + 10, 0), (30, MAX_RESULT_BYTES)])
def test_one_tenants_flood_evicts_nobody_elses(number: int, size: int) -> None:
    results = Results()
    kept(results, "globex", "k", 100)
    for one in range(number):
        kept(results, "acme", str(one), size)
    assert claim(results, scope="globex").state == "done"
    assert claim(results, key="0").state == "new"


def test_tenants_that_flood_together_evict_nobody_who_holds_little() -> None:
    results = Results()
    kept(results, "globex", "k", MAX_RESULT_BYTES)
    for key in range(MAX_ACCOUNT_BYTES // MAX_RESULT_BYTES):
        for tenant in range(2 * MAX_KEPT_BYTES // MAX_ACCOUNT_BYTES):
            kept(results, f"flood{tenant}", str(key), MAX_RESULT_BYTES - 1024)
            assert results.kept_bytes <= MAX_KEPT_BYTES
    assert claim(results, scope="globex").state == "done"


def test_names_that_anybody_may_take_share_one_account() -> None:
    results = Results()
    for one in range(MAX_ACCOUNT_RESULTS + 1):
        kept(results, f"name{one}", "k", 0, account="")
    assert claim(results, account="", scope="name0").state == "new"
    assert claim(results, account="", scope="name1").state == "done"


@pytest.mark.parametrize(("size", "state"), [(MAX_RESULT_BYTES, "done"), (MAX_RESULT_BYTES + 1, "new")])
def test_a_long_result_is_not_kept(size: int, state: str) -> None:
    results = Results()
    claim(results)
    results.keep(Keep("a!", *NAME, bytes(size)), 0.0)
    assert claim(results).state == state


def test_many_small_ones_count_too() -> None:
    results = Results()
    claim(results)
    results.keep(Keep("a!", *NAME, b""), 0.0)
    assert results.kept_bytes > 0


def follow(results: Results, have: int = 0, now: float = 0.0) -> Claimed:
    return results.claim(Claim("b", "b!", "acme", "acme", "k", b"1", have), now)


def share(results: Results, first: int, *pieces: bytes, token: str = "a!", too_long: bool = False) -> None:
    results.share(Share(token, *NAME, first, list(pieces), too_long))


def test_what_runs_is_wanted_while_others_ask_for_it_and_shared_piece_by_piece() -> None:
    results = Results()
    claim(results)
    assert results.wanted("a", 0.0) == Wanted({})
    assert claim(results).pieces == []
    assert results.wanted("a", 0.0) == Wanted({}), "its own front end has it"
    assert follow(results, now=1.0).pieces == []
    assert results.wanted("a", 1.0) == Wanted({"a!": 0})
    assert results.wanted("b", 1.0) == Wanted({})
    share(results, 0, b"one", b"two")
    share(results, 0, b"one", b"two")
    share(results, 3, b"four")
    share(results, 2, b"forged", token="b!")
    assert follow(results, have=1).pieces == [b"two"]
    assert results.wanted("a", 1.0) == Wanted({"a!": 2})
    assert results.wanted("a", 1.0 + WANTED_SECONDS) == Wanted({})
    share(results, 2, b"three")
    assert follow(results, have=2).pieces == [b"three"]


def test_what_is_shared_is_bounded_by_account_and_given_back() -> None:
    results = Results()
    for number in range(3):
        for _ in range(2):
            claim(results)
            share(results, 0, bytes(MAX_ACCOUNT_BYTES))
            assert follow(results).pieces == [bytes(MAX_ACCOUNT_BYTES)]
            share(results, 1, b"more")
            assert follow(results) == Claimed("running", "a", run="a!"), "no more than the bound: the rest comes with the end"
            assert results.wanted("a", 0.0) == Wanted({"a!": None})
            if number == 0:
                results.release("a!", NAME)
            elif number == 1:
                results.forget("a")
            else:
                results.keep(Keep("a!", *NAME, b""), -KEPT_SECONDS)


def test_a_key_with_too_long_an_answer_is_told_so() -> None:
    results = Results()
    claim(results)
    share(results, 0, b"one")
    share(results, 0, too_long=True)
    assert follow(results) == claim(results) == Claimed("too_long", "a")
    results.release("a!", NAME)
    assert follow(results).state == "new"


def begun(results: Results, begin: Begin, owner: str = "a", now: float = 0.0) -> Claimed:
    return results.claim(Claim(owner, f"{owner}{now}", "acme", "acme", "k", b"", begin=begin), now)


def test_who_only_looks_begins_nothing() -> None:
    results = Results()
    assert begun(results, "never").state == begun(results, "never").state == "none"
    begun(results, "anew")
    assert begun(results, "never", now=1.0) == Claimed("running", "a", run="a0.0")
    results.keep(Keep("a0.0", *NAME, b"answer"), 2.0)
    assert begun(results, "never", "b") == Claimed("done", result=b"answer", run="a0.0")


def test_who_begins_anew_ends_what_ran_and_forgets_what_was_kept() -> None:
    results = Results()
    assert begun(results, "anew").state == begun(results, "anew", "b", 1.0).state == "new"
    assert (results.wanted("a", 1.0), results.wanted("b", 1.0)) == (Wanted({}, ["a0.0"]), Wanted({}))
    results.keep(Keep("a0.0", *NAME, b"late"), 2.0)
    assert begun(results, "never", "c").run == "b1.0", "what was revoked is not kept"
    assert results.wanted("a", 2.0) == Wanted({}), "it has ended"
    results.keep(Keep("b1.0", *NAME, b"answer"), 3.0)
    assert begun(results, "anew", "c", 4.0).state == "new"
    assert results.kept_bytes == 0


def test_what_is_revoked_is_told_until_its_front_end_is_gone() -> None:
    results = Results()
    assert not results.revoke(NAME, 0.0)
    begun(results, "anew")
    share(results, 0, b"one", token="a0.0")
    assert results.revoke(NAME, 0.0)
    assert not results.revoke(NAME, 0.0)
    assert (results.wanted("a", 0.0).revoked, begun(results, "never").state) == (["a0.0"], "none")
    results.forget("a")
    assert results.wanted("a", 0.0).revoked == []
    begun(results, "anew")
    results.keep(Keep("a0.0", *NAME, b"answer"), 0.0)
    assert results.revoke(NAME, 0.0)
    assert (results.kept_bytes, begun(results, "never").state) == (0, "none")


def test_an_account_lists_its_scopes_own() -> None:
    results = Results()
    for key, scope, account in (("s1", "acme", "acme"), ("s2", "acme", "acme"), ("k", "acme", "acme"), ("s1", "other", "acme")):
        claim(results, scope=scope, account=account, key=key)
    results.keep(Keep("a!", "acme", "s1", b"answer", 7), 1.0)
    assert results.listed(ListKept("acme", "acme", "s"), 5.0) == Listed(
        [Entry("s2", "running", 5.0), Entry("s1", "done", 5.0, 7)]
    )
    assert results.listed(ListKept("globex", "acme", "s"), 5.0) == Listed([])
    assert results.listed(ListKept("acme", "acme", "s"), 1.0 + KEPT_SECONDS) == Listed(
        [Entry("s2", "running", 1.0 + KEPT_SECONDS)]
    )
