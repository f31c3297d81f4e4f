"""A server's settings: flags before the file, the file before defaults."""

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


def test_flags_are_not_abbreviated(tmp_path, capsys):
    with pytest.raises(SystemExit):
        read_start(["--conf", "x"], "prog", "what it does")
    assert "unrecognized arguments: --conf" in capsys.readouterr().err


def test_what_is_printed_is_a_file_that_says_the_same(tmp_path):
    first = start(tmp_path, "max-num-seqs: 8\nkeys: keys.toml\nport: 0\n", "--page-size", "32")
    again = start(tmp_path, first.as_yaml())
    assert (again.engine, again.server) == (first.engine, first.server)
    assert first.as_yaml(changed_only=True) == "page-size: 32\nmax-num-seqs: 8\nport: 0\nkeys: keys.toml\n"
