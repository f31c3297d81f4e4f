"""Certificates and keys are checked before anything listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConfigError
from jaxserve.serve import main
from server.tls import load_tls
from tests.support.certificates import Authority, Pair, with_password


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


def config(**paths: Path) -> ServerConfig:
    settings: dict[str, Any] = {name: str(path) for name, path in paths.items()}
    return ServerConfig(**settings)


def test_nothing_is_loaded_unasked() -> None:
    assert load_tls(ServerConfig()) is None


def test_good_files(authority: Authority, pair: Pair) -> None:
    tls = load_tls(config(tls_cert=pair.cert, tls_key=pair.key))
    assert tls is not None
    assert tls.http_settings() == {"ssl_certfile": str(pair.cert), "ssl_keyfile": str(pair.key)}
    both = load_tls(config(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=authority.own.cert))
    assert both is not None
    assert both.http_settings()["ssl_ca_certs"] == str(authority.own.cert)


@pytest.mark.parametrize(
    ("given", "param"),
    [({"tls_cert": "x"}, "tls_key"), ({"tls_key": "x"}, "tls_cert"), ({"tls_client_ca": "x"}, "tls_client_ca")],
)
def test_half_of_it(given: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as info:
        ServerConfig(**given)
    assert info.value.param == param


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_client_ca"])
def test_files_that_are_missing(authority: Authority, pair: Pair, tmp_path: Path, name: str) -> None:
    good = {"tls_cert": pair.cert, "tls_key": pair.key, "tls_client_ca": authority.own.cert}
    for path, words in ((tmp_path / "missing", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=words) as info:
            load_tls(config(**{**good, name: path}))
        assert info.value.param == name
        assert info.value.message.startswith(f"{name} {path} cannot be read")


def test_files_that_do_not_fit(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    other = authority.issue("other")
    text = tmp_path / "text"
    text.write_text("hello")
    locked = with_password(pair.key, tmp_path)
    for cert, key in ((pair.cert, other.key), (pair.key, pair.cert), (text, pair.key), (pair.cert, text), (pair.cert, locked)):
        with pytest.raises(ConfigError, match="are no PEM certificate and its key without a password") as info:
            load_tls(config(tls_cert=cert, tls_key=key))
        assert info.value.param == "tls_cert"
        assert "\n" not in info.value.message
    with pytest.raises(ConfigError, match="holds no PEM certificates") as info:
        load_tls(config(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=text))
    assert info.value.param == "tls_client_ca"


def test_the_program_says_so_in_one_line(pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.pem")
    assert main(["no-such-model", "--tls-cert", missing, "--tls-key", str(pair.key)]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"jaxserve: tls_cert {missing} cannot be read (No such file or directory)\n"
    assert captured.out == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grpc_max_message_mib", 0),
        ("grpc_max_message_mib", 1025),
        ("grpc_keepalive", 0.5),
        ("grpc_keepalive", float("nan")),
        ("grpc_keepalive", 1e9),
    ],
)
def test_limits_of_grpc(name: str, value: float) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"{name} must be between") as info:
        ServerConfig(**settings)
    assert info.value.param == name
