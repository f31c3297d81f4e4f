"""A server's settings: flags before the file, the file before defaults."""

import hashlib

import pytest

from jaxserve.config.start import read_start
from jaxserve.errors import ConfigError


def start(tmp_path, text, *flags):
    path = tmp_path / "server.yaml"
    path.write_text(text)
    return read_start(["--config", str(path), *flags], "prog", "what it does")


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    text = "model: /models/a\nmax-num-seqs: 8\nport: 9000\nprefix_caching: false\noverlap: false\ngpu-memory-fraction: 1\n"
    found = start(tmp_path, text, "--max-num-seqs", "16", "--prefix-caching")
    assert (found.engine.model.model, found.engine.scheduler.max_num_seqs, found.server.port) == ("/models/a", 16, 9000)
    assert (found.engine.cache.prefix_caching, found.engine.scheduler.overlap) == (True, False)
    assert found.engine.cache.gpu_memory_fraction == 1
    assert (found.server.grpc_port, found.source.check) == (8001, False)
    assert start(tmp_path, text, "/models/b").engine.model.model == "/models/b"


def test_a_flag_that_repeats_the_default_wins_too(tmp_path):
    assert start(tmp_path, "port: 9000\n", "--port", "8000").server.port == 8000


def test_without_a_file_there_are_flags_and_defaults():
    found = read_start(["--check"], "prog", "what it does")
    assert (found.engine.model.model, found.server.port, found.source.check) == ("pico", 8000, True)


def test_keys_reach_the_engine_for_their_weights(tmp_path):
    found = start(tmp_path, "keys: keys.toml\n")
    assert (found.server.keys, found.engine.scheduler.tenant_keys) == ("keys.toml", "keys.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port: '9000'\n", "port must be an integer, got '9000'"),
        ("port: 9000.0\n", "port must be an integer"),
        ("overlap: 1\n", "overlap must be True or False"),
        ("dtype: float8\n", "dtype must be one of"),
        ("model: 5\n", "model must be a string"),
        ("port: 70000\n", "port must be between 0 and 65535"),
        ("gpu-memory-utilization: 0.5\n", "unknown setting 'gpu-memory-utilization'; it is gpu-memory-fraction here"),
        ("swap-space: -1\n", "swap_space must be at least 0 and finite, got -1"),
        ("tenant-keys: x\n", "unknown setting 'tenant-keys'"),
        ("check: true\n", "unknown setting 'check'"),
        ("config: other.yaml\n", "unknown setting 'config'"),
        ("host: 0.0.0.0\n", "there are no API keys"),
    ],
)
def test_a_setting_of_the_file_that_cannot_be_is_named(tmp_path, text, says):
    with pytest.raises(ConfigError) as caught:
        start(tmp_path, text)
    assert says in caught.value.message


def test_flags_are_not_abbreviated():
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --conf \(did you mean --config\?\)$"):
        read_start(["--conf", "x"], "prog", "what it does")


def test_the_model_may_be_named_once(tmp_path):
    assert read_start(["--model", "/models/b"], "prog", "").engine.model.model == "/models/b"
    assert start(tmp_path, "model: /models/a\n", "--model", "/models/b").engine.model.model == "/models/b"
    for twice in (["/models/a", "--model", "/models/b"], ["--model", "/models/a", "/models/b"]):
        with pytest.raises(ConfigError, match="model is given twice, as '/models/a' and as '/models/b'"):
            read_start(twice, "prog", "")


def test_a_model_may_have_several_names(tmp_path):
    assert read_start(["--served-model-name", "a", "b"], "prog", "").engine.model.served_model_name == ("a", "b")
    for text in ("served-model-name: a\n", "served-model-name: [a]\n"):
        assert start(tmp_path, text).engine.model.served_model_name == ("a",)
    with pytest.raises(ConfigError, match="served_model_name must be names that differ, got 'a', 'a'"):
        read_start(["--served-model-name", "a", "a"], "prog", "")


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def test_keys_of_the_command_line_go_on_as_hashes(monkeypatch):
    monkeypatch.setenv("JAXSERVE_API_KEY", "other")
    found = read_start(["--api-key", "sesame", "open", "--host", "0.0.0.0"], "prog", "")
    assert found.server.api_key_hashes == (digest("sesame"), digest("open"))
    assert "sesame" not in repr(found)
    assert "api" not in found.as_yaml()


def test_a_key_may_be_in_the_environment(monkeypatch):
    assert read_start([], "prog", "").server.api_key_hashes == ()
    monkeypatch.setenv("JAXSERVE_API_KEY", "sesame")
    assert read_start([], "prog", "").server.api_key_hashes == (digest("sesame"),)
    with pytest.raises(ConfigError, match=r"keys and api_key .*JAXSERVE_API_KEY.* exclude each other"):
        read_start(["--keys", "keys.toml"], "prog", "")


@pytest.mark.parametrize("key", ["", "two words", "schl\u00fcssel", "line\n"])
def test_a_key_that_no_header_carries_is_refused_untold(key):
    with pytest.raises(ConfigError) as refused:
        read_start(["--api-key", "good", key], "prog", "")
    assert refused.value.message == "api_key must be printable ASCII without spaces, at least one character"


def test_what_is_printed_is_a_file_that_says_the_same(tmp_path):
    first = start(tmp_path, "max-num-seqs: 8\nkeys: keys.toml\nport: 0\n", "--page-size", "32")
    again = start(tmp_path, first.as_yaml())
    assert (again.engine, again.server) == (first.engine, first.server)
    assert first.as_yaml(changed_only=True) == "page-size: 32\nmax-num-seqs: 8\nport: 0\nkeys: keys.toml\n"
