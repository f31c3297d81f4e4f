"""Keys: the file, who a credential is, and files that change while the server runs."""

import hashlib
import logging
import os
import stat
from pathlib import Path

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.config.keys_file import TenantLimits, keys_of_one_tenant, load_keys, with_weights
from jaxserve.config.policies import Policies, TenantPolicy
from jaxserve.config.policies_file import load_policies
from jaxserve.config.server import ServerConfig
from jaxserve.errors import AuthenticationError, ConfigError
from jaxserve.keys import main
from jaxserve.types import ServiceClass
from server.gateway.gateway import check_files
from server.gateway.keys import POLL_SECONDS, KeyRing


def entry(key: str, tenant: str = "acme", **fields: object) -> str:
    lines = [f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"', f'tenant = "{tenant}"']
    return "\n".join(["[[key]]", *lines, *(f"{name} = {value}" for name, value in fields.items()), "", ""])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_a_key_is_found_by_its_hash(path: Path) -> None:
    path.write_text(
        entry("one", tpm=100, id='"web"', **{"class": '"batch"'}, models='["pico"]', admin="true") + entry("two", "globex")
    )
    ring = KeyRing(str(path), VirtualClock())
    principal = ring.principal([b"one"])
    assert (principal.tenant, principal.key_id, principal.service_class) == ("acme", "web", ServiceClass.BATCH)
    assert (principal.models, principal.admin, principal.limits) == (frozenset({"pico"}), True, TenantLimits(tpm=100))
    other = ring.principal([b"two", b"two"])
    assert (other.tenant, other.key_id, other.admin) == ("globex", hashlib.sha256(b"two").hexdigest()[:12], False)
    assert (other.models, other.limits.any) == (None, False)


def test_keys_may_be_given_without_a_file() -> None:
    ring = KeyRing(keys_of_one_tenant([hashlib.sha256(key).hexdigest() for key in (b"one", b"two")]), VirtualClock())
    for key in (b"one", b"two"):
        principal = ring.principal([key])
        assert (principal.tenant, principal.admin, principal.limits.any) == ("default", True, False)
        assert ring.named("default", principal.key_id) == principal
    with pytest.raises(AuthenticationError):
        ring.principal([b"three"])


@pytest.mark.parametrize("credentials", [[], [b"three"], [b""], [b"one "], [b"\xff\xfe"], [b"one", b"two"], [b"O" * 100_000]])
def test_others_are_refused(path: Path, credentials: list[bytes]) -> None:
    path.write_text(entry("one") + entry("two", "globex"))
    with pytest.raises(AuthenticationError) as refused:
        KeyRing(str(path), VirtualClock()).principal(credentials)
    assert "one" not in refused.value.message.split()


@pytest.mark.parametrize(("expires", "known"), [("2001-01-01T00:00:00Z", False), ("2999-01-01T00:00:00+02:00", True)])
def test_keys_expire(path: Path, expires: str, known: bool) -> None:
    path.write_text(entry("one", expires=expires))
    ring = KeyRing(str(path), VirtualClock())
    if known:
        assert ring.principal([b"one"]).tenant == "acme"
    else:
        with pytest.raises(AuthenticationError, match="expired"):
            ring.principal([b"one"])


def test_a_key_is_found_by_its_name_until_it_is_gone(path: Path) -> None:
    clock = VirtualClock()
    path.write_text(entry("one", id='"web"', models='["pico"]') + entry("two", expires="2001-01-01T00:00:00Z", id='"old"'))
    ring = KeyRing(str(path), clock)
    assert ring.named("acme", "web") == ring.principal([b"one"])
    for tenant, name, words in (("globex", "web", "not known"), ("acme", "wob", "not known"), ("acme", "old", "expired")):
        with pytest.raises(AuthenticationError, match=words):
            ring.named(tenant, name)
    path.write_text(entry("three"))
    clock.advance(POLL_SECONDS)
    with pytest.raises(AuthenticationError, match="not known"):
        ring.named("acme", "web")


def test_a_changed_file_is_read_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    path.write_text(entry("one"))
    ring = KeyRing(str(path), clock)
    path.write_text(entry("second", tpm=7))
    assert ring.principal([b"one"]), "not before its time"
    clock.advance(POLL_SECONDS)
    assert ring.principal([b"second"]).limits.tpm == 7
    with pytest.raises(AuthenticationError):
        ring.principal([b"one"])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("content", ["[[key]", "", "[[key]]\ntenant = 'x'\n", None])
def test_a_broken_file_leaves_the_keys_and_is_complained_about_once(
    path: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    clock = VirtualClock()
    path.write_text(entry("one"))
    ring = KeyRing(str(path), clock)
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    for _ in range(3):
        clock.advance(POLL_SECONDS)
        assert ring.principal([b"one"]).tenant == "acme"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    path.write_text(entry("two"))
    clock.advance(POLL_SECONDS)
    assert ring.principal([b"two"]).tenant == "acme"


def test_a_new_weight_waits_for_the_next_start(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    path.write_text(entry("one", weight=2.0))
    ring = KeyRing(str(path), clock)
    path.write_text(entry("one", weight=3.5))
    clock.advance(POLL_SECONDS)
    ring.principal([b"one"])
    assert "weights" in caplog.text


def test_limits_are_the_tenants(path: Path) -> None:
    path.write_text(entry("one", tpm=5, rpm=1) + entry("two", rpm=1, max_concurrent=3) + entry("three", daily_tokens=9))
    assert load_keys(str(path)).limits == {"acme": TenantLimits(rpm=1, tpm=5, max_concurrent=3, daily_tokens=9)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (entry("one", tpm=5) + entry("two", tpm=6), "tpm of tenant 'acme' is given as 5 and 6"),
        (entry("one", weight=2.0) + entry("two", weight=3.0), "weight of tenant 'acme' is given as 2 and 3"),
        (entry("one") + entry("one", "globex"), "two keys have the sha256"),
        (entry("one", id='"x"') + entry("two", id='"x"'), "two keys have the id x"),
        (entry("one", tpm=0), "tpm"),
        (entry("one", tpm=1.5), "tpm"),
        (entry("one", weight=0.0), "weight"),
        (entry("one", **{"class": '"gold"'}), "class"),
        (entry("one", expires="2030-01-01T00:00:00"), "expires"),
        (entry("one", plain='"one"'), "plain"),
        (entry("one").replace("sha256", "hash"), "hash"),
        (entry("one", ""), "tenant"),
        ('[[key]]\nsha256 = "abc"\ntenant = "x"', "sha256"),
        ("[[keys]]\n", "keys"),
        ("\xff", "line 1"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(path: Path, content: str, words: str) -> None:
    path.write_text(content)
    with pytest.raises(ConfigError, match="keys: ") as info:
        load_keys(str(path))
    assert words in info.value.message
    assert str(path) in info.value.message


def sealed_file(path: Path, capsys: pytest.CaptureFixture[str]) -> bytes:
    """Two keys of a tenant, whose limits stand in the second; sealed as a whole."""
    path.write_text(entry("one") + entry("two", tpm=5, models='["pico"]'))
    assert main(["seal", str(path)]) == 0
    assert "2 keys of 1 tenants" in capsys.readouterr().err
    return path.read_bytes()


def test_a_sealed_file_that_is_cut_off_anywhere_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = sealed_file(path, capsys)
    assert load_keys(str(path)).unsealed == 0
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match="keys: "):
            load_keys(str(path))


def test_a_sealed_file_that_was_changed_is_refused_until_it_is_sealed_again(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = sealed_file(path, capsys)
    path.write_bytes(whole.replace(b"tpm = 5", b"tpm = 6"))
    with pytest.raises(ConfigError, match=f"cut off or changed; if it is as it should be: .* seal {path}"):
        load_keys(str(path))
    path.chmod(0o640)
    link = path.with_name("link")
    link.symlink_to(path)
    assert main(["seal", str(link)]) == 0
    assert load_keys(str(path)).limits["acme"].tpm == 6
    assert (link.is_symlink(), stat.S_IMODE(path.stat().st_mode)) == (True, 0o640)
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(".")] == []


def test_new_keys_are_sealed_and_may_be_appended_to_any_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = sealed_file(path, capsys)
    assert main(["new", "--tenant", "globex", "--tpm", "7"]) == 0
    added = capsys.readouterr().out.encode()
    for start, sealed in ((begun, 2), (entry("one").encode(), 0), (b"", 0)):
        path.write_bytes(start + added)
        keys = load_keys(str(path))
        assert keys.limits["globex"].tpm == 7
        assert keys.unsealed == len(keys.keys) - 1 - sealed
        for length in range(1, len(added)):
            path.write_bytes(start + added[:length])
            if not b"# sealed:".startswith(added[:length].rstrip()):
                with pytest.raises(ConfigError, match="keys: "):
                    load_keys(str(path))


def test_a_server_that_runs_keeps_its_keys_while_a_file_is_half_written(
    path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    whole, clock = sealed_file(path, capsys), VirtualClock()
    ring = KeyRing(str(path), clock)
    path.write_bytes(whole[: whole.index(b"tpm")])
    clock.advance(POLL_SECONDS)
    assert ring.principal([b"two"]).limits.tpm == 5
    assert "cut off" in caplog.text


def test_a_file_without_seals_is_taken_and_said_to_have_none(
    path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(entry("one") + entry("two"))
    check_files(ServerConfig(keys=str(path)))
    (said,) = caplog.records
    assert said.getMessage().startswith(f"2 of 2 keys in {path} are not sealed")
    assert said.getMessage().endswith(f"python -m jaxserve.keys seal {path}")
    caplog.clear()
    sealed_file(path, capsys)
    check_files(ServerConfig(keys=str(path)))
    assert caplog.records == []


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        KeyRing(str(path), VirtualClock())


def test_weights_join_the_policies(path: Path, tmp_path: Path) -> None:
    path.write_text(entry("one", weight=4.0) + entry("two", "globex"))
    policies = tmp_path / "policies.json"
    policies.write_text('{"tenants": {"*": {"kv_share": 0.5}, "globex": {"weight": 2}}}')
    merged = load_policies(str(policies), str(path))
    assert merged.of_tenant("acme") == TenantPolicy(weight=4.0, kv_share=0.5)
    assert merged.of_tenant("globex").weight == 2.0
    assert merged.of_tenant("else").weight == 1.0
    assert load_policies(None, str(path)).of_tenant("acme").weight == 4.0


def test_weights_that_contradict_the_policies_are_refused() -> None:
    policies = Policies(tenants={"acme": TenantPolicy(weight=2.0, kv_share=0.5), "plain": TenantPolicy(kv_share=0.5)})
    with pytest.raises(ConfigError, match="weight of tenant 'acme' is 3, but 2 in the policies"):
        with_weights(policies, {"acme": 3.0})
    assert with_weights(policies, {"acme": 2.0}).of_tenant("acme") == policies.of_tenant("acme")
    assert with_weights(policies, {"plain": 3.0}).of_tenant("plain") == TenantPolicy(weight=3.0, kv_share=0.5)


def test_a_new_key_is_shown_once_and_its_lines_are_a_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "--tenant", 'ac"me', "--tpm", "100", "--service-class", "batch", "--admin", "--weight", "2"]) == 0
    out, err = capsys.readouterr()
    key = err.split()[-1]
    assert key.startswith("jxs-")
    assert key not in out
    path.write_text(out)
    os.utime(path)
    principal = KeyRing(str(path), VirtualClock()).principal([key.encode()])
    assert (principal.tenant, principal.service_class, principal.admin) == ('ac"me', ServiceClass.BATCH, True)
    assert load_keys(str(path)).weights == {'ac"me': 2.0}
    assert main(["new", "--tenant", "acme"]) == 0
    assert capsys.readouterr().err.split()[-1] != key


@pytest.mark.parametrize(
    "arguments",
    [
        ["new"],
        ["new", "--tenant", "x", "--service-class", "gold"],
        ["old", "--tenant", "x"],
        [],
        ["seal"],
        ["seal", "/no/such/file"],
    ],
)
def test_what_is_wrong_with_a_wish_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
