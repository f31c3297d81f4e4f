"""Settings from YAML, and as YAML again."""

from dataclasses import fields

import pytest

from jaxserve.config.fields import CacheConfig, ModelConfig
from jaxserve.config.file import as_yaml, read_settings
from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConfigError

KNOWN = {
    item.name for config in (CacheConfig, ModelConfig, ServerConfig) for item in fields(config) if item.metadata.get("flag", True)
}


def written(tmp_path, text):
    path = tmp_path / "jaxserve.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_names_have_dashes_or_underscores_and_values_their_types(tmp_path):
    text = """
        model: /models/llama  # where it is
        page-size: 32
        gpu_memory_fraction: 0.8
        host: '::1'
        keys: null
        prefix-caching: false
        """
    assert read_settings(written(tmp_path, text), KNOWN) == {
        "model": "/models/llama",
        "page_size": 32,
        "gpu_memory_fraction": 0.8,
        "host": "::1",
        "keys": None,
        "prefix_caching": False,
    }


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_says_nothing(tmp_path, text):
    assert read_settings(written(tmp_path, text), KNOWN) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port: 1\nprot: 2\n", "unknown setting 'prot'"),
        ("port: 1\nhost: x\nport: 2\n", "line 3: 'port' is there twice"),
        ("grpc-port: 1\ngrpc_port: 2\n", "'grpc_port' is there twice"),
        ("- port\n", "must hold settings as NAME: VALUE, got list"),
        ("port: [1\n", "line 2"),
        ("port: !!python/object:os.system x\n", "could not determine a constructor"),
        ("? [port]\n: 1\n", "unhashable"),
        ("1: 2\n", "unknown setting 1"),
        (b"host: \xff\n", "not UTF-8"),
        ("a: &a [*a, *a]\n", "unknown setting 'a'"),
    ],
)
def test_a_file_that_cannot_be_is_refused_in_a_line(tmp_path, text, says):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_settings(path, KNOWN)
    assert says in caught.value.message
    assert path in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_settings(str(tmp_path / "nowhere"), KNOWN)


def test_what_is_written_reads_the_same(tmp_path):
    cache, server = CacheConfig(page_size=32), ServerConfig(port=0, host="::1", keys="ключи.toml")
    settings = read_settings(written(tmp_path, as_yaml(cache, server)), KNOWN)
    assert settings == {
        item.name: getattr(config, item.name) for config in (cache, server) for item in fields(config) if item.name in KNOWN
    }
    changed = read_settings(written(tmp_path, as_yaml(cache, server, changed_only=True)), KNOWN)
    assert changed == {"page_size": 32, "port": 0, "host": "::1", "keys": "ключи.toml"}
    assert as_yaml(CacheConfig(), changed_only=True) == ""
