"""Which servers the environment's proxies are for."""

import pytest

from jaxserve.errors import ConfigError
from jaxserve.terminal.connections import environment_errors, uses_environment


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000", "https://127.9.9.9"])
def test_proxies_are_not_for_this_machine(url: str) -> None:
    assert not uses_environment(url)


@pytest.mark.parametrize("url", ["http://10.0.0.1", "http://example.com", "http://[2001:db8::1]:8000"])
def test_proxies_are_for_other_machines(url: str) -> None:
    assert uses_environment(url)


def test_unusable_variables_are_named() -> None:
    with pytest.raises(ConfigError, match=r"HTTP_PROXY.*Unknown scheme"), environment_errors("http://example.com"):
        raise ValueError("Unknown scheme for proxy URL")
