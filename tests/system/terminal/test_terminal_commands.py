"""bench, chat and top against a real server, and chat with a model in its own process."""

import json
import subprocess
import sys

import pytest

from tests.support.serve_process import environment
from tests.system.interop.conftest import SMALL


@pytest.fixture(scope="module")
def server(served, tmp_path_factory):
    yield from served(tmp_path_factory.mktemp("server"), *SMALL)


def command(name, *arguments, lines="", seconds=240):
    return subprocess.run(
        [sys.executable, "-m", f"jaxserve.{name}", *arguments],
        input=lines,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@pytest.mark.parametrize("loop", [("--concurrency", "4"), ("--rate", "20")], ids=["closed", "open"])
def test_a_load_gives_figures_that_agree_with_the_server(server, tmp_path, loop):
    figures, picture = tmp_path / "load.json", tmp_path / "load.png"
    workload = ("--requests", "24", "--prompt-tokens", "24", "--output-tokens", "12", "--prefixes", "2", "--prefix-tokens", "16")
    written = ("--json", str(figures), "--plot", str(picture))
    ended = command("bench", "serving", "--base-url", server.http, *workload, *loop, *written)
    assert ended.returncode == 0, ended.stderr
    assert "24 requests" in ended.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(figures.read_text())
    assert (report["finished"], report["errors"]) == (24, {})
    assert report["cached_tokens"] > 0
    assert 0 < report["ttft"]["p50"] <= report["ttft"]["p99"] <= report["total"]["max"]
    agreement = {pair["name"]: (pair["clients"], pair["server"]) for pair in report["agreement"]}
    for name in ("finished", "prompt", "output"):
        assert agreement[name][0] == agreement[name][1] > 0, name
    # The client also waits for the network and for its own turn. Not between tokens: those after a late one come the sooner.
    for name in ("mean TTFT", "mean E2E"):
        clients, servers = agreement[name]
        assert 0 < servers < 1.05 * clients, (name, clients, servers)


def test_a_trace_is_replayed_and_refusals_are_counted(server, tmp_path):
    trace = tmp_path / "trace.jsonl"
    entries = [
        {"arrival": 0.0, "prompt_tokens": 8, "output_tokens": 4, "class": "batch"},
        {"arrival": 0.1, "prompt_tokens": 8, "output_tokens": 400, "timeout": 0.001},
    ]
    trace.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    figures = tmp_path / "load.json"
    ended = command("bench", "serving", "--base-url", server.http, "--trace", str(trace), "--json", str(figures))
    assert ended.returncode == 1
    report = json.loads(figures.read_text())
    assert (report["requests"], report["finished"], report["errors"]) == (2, 1, {"deadline_exceeded": 1})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--base-url", "http://127.0.0.1:9"), "cannot talk to http://127.0.0.1:9"),
        (("--model", "nobody"), "model: the server has pico, not 'nobody'"),
        (("--prompt-tokens", "100000"), "but the context is"),
        (("--trace", "/nowhere"), "cannot read /nowhere"),
    ],
)
def test_a_load_that_cannot_be_is_one_line(server, arguments, says):
    where = () if "--base-url" in arguments else ("--base-url", server.http)
    ended = command("bench", "serving", *where, *arguments)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_chat_with_a_server(server):
    lines = "/set temperature 0\nWhat is 17 + 25?\n/history\n"
    ended = command("chat", server.http, lines=lines)
    assert ended.returncode == 0, ended.stderr
    assert "pico listens" in ended.stdout
    assert "user: What is 17 + 25?\nassistant: 42\n" in ended.stdout
    assert "a second, the first after" in ended.stdout


def test_a_chat_with_a_model_of_its_own():
    ended = command("chat", "pico", "--temperature", "0", lines="What is 17 + 25?\n")
    assert ended.returncode == 0, ended.stderr
    assert "\n42\n" in ended.stdout


def test_a_chat_nobody_answers_is_one_line(server):
    ended = command("chat", server.http, "--model", "nobody")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "has pico, not 'nobody'" in ended.stderr


def test_top_shows_the_server(server):
    ended = command("top", server.http, "--once", "--interval", "0.2")
    assert ended.returncode == 0, ended.stderr
    for words in ("pico at", "sequences", "KV cache", "requests received"):
        assert words in ended.stdout
