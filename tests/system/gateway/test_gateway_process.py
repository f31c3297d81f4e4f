"""The gateway as people run it: `python -m jaxserve.keys`, then `python -m jaxserve.serve --keys --usage-log`."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import openai
import pytest

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.serve import main
from tests.integration.gateway.conftest import usage
from tests.support.serve_process import FREE_PORTS, ROOT, Process, Served
from tests.support.tiny_checkpoint import write_tiny_checkpoint

SMALL = (
    "--max-num-seqs",
    "2",
    "--max-num-batched-tokens",
    "16",
    "--max-model-len",
    "128",
    "--load-format",
    "dummy",
    "--frontends",
    "2",
)
PROMPT = [7] * 100


@dataclass
class Gated:
    process: Process
    keys_file: Path
    usage_log: Path
    keys: dict[str, str]

    def sdk(self, tenant: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.process.http}/v1", api_key=self.keys[tenant], max_retries=0)


def new_key(file: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "jaxserve.keys", "new", *arguments]
    made = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    with file.open("a") as lines:
        lines.write(made.stdout)
    return made.stderr.split()[-1]


@pytest.fixture(scope="module")
def gated(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    folder = tmp_path_factory.mktemp("gated")
    file, log = folder / "keys.toml", folder / "usage.jsonl"
    keys = {
        "acme": new_key(file, "--tenant", "acme", "--weight", "4"),
        "globex": new_key(file, "--tenant", "globex", "--tpm", "3000"),
        "hooli": new_key(file, "--tenant", "hooli", "--tpm", "3000"),
    }
    checkpoint = write_tiny_checkpoint(folder / "tiny")
    for process in served(folder, str(checkpoint), *SMALL, "--keys", str(file), "--usage-log", str(log)):
        yield Gated(process, file, log, keys)


def test_wrong_keys_are_401(gated: Gated) -> None:
    with openai.OpenAI(base_url=f"{gated.process.http}/v1", api_key="jxs-wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as info:
            client.models.list()
        assert info.value.code == "invalid_api_key"
    with grpc.insecure_channel(gated.process.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        next(InferenceStub(channel).Generate(pb.GenerateRequest(text="x")))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert httpx.get(f"{gated.process.http}/health", timeout=60).status_code == 200


def test_a_tenant_over_its_tokens_waits_exactly_as_told_and_others_do_not(gated: Gated) -> None:
    """3,000 tokens a minute flow in 50 a second; each request takes 101."""
    with gated.sdk("globex") as client, gated.sdk("acme") as other:
        for _ in range(1000):
            try:
                client.completions.create(model="tiny", prompt=PROMPT, max_tokens=1)
            except openai.RateLimitError as error:
                refused = error
                break
        headers = refused.response.headers
        told = re.search(r"limit 3000, used (\d+), requested 101\. Please try again in ([\d.]+)s", refused.message)
        assert told is not None
        remaining, wait = int(headers["x-ratelimit-remaining-tokens"]), float(told[2])
        assert (remaining, headers["x-ratelimit-limit-tokens"]) == (3000 - int(told[1]), "3000")
        assert wait == pytest.approx((101 - remaining) / 50, abs=0.021)
        assert int(headers["retry-after"]) >= wait
        assert other.completions.create(model="tiny", prompt=PROMPT, max_tokens=1).usage is not None
        time.sleep(wait)
        assert client.completions.create(model="tiny", prompt=PROMPT, max_tokens=1).usage is not None


def test_keys_come_and_go_while_it_runs(gated: Gated) -> None:
    before = gated.keys_file.read_text()
    gated.keys["initech"] = new_key(gated.keys_file, "--tenant", "initech")
    with gated.sdk("initech") as client:
        assert _eventually(client) is None
        gated.keys_file.write_text("[[key")
        assert client.models.list().data
        gated.keys_file.write_text(before)
        assert isinstance(_eventually(client, wanted=False), openai.AuthenticationError)
    with gated.sdk("acme") as client:
        assert client.models.list().data
    assert "jxs-" not in gated.process.err.read_text()


def _eventually(client: openai.OpenAI, *, wanted: bool = True) -> Exception | None:
    """The outcome of a call once it is as wanted: files are looked at every second."""
    deadline = time.monotonic() + 30
    while True:
        outcome: Exception | None = None
        try:
            client.models.list()
        except openai.AuthenticationError as error:
            outcome = error
        if (outcome is None) == wanted or time.monotonic() > deadline:
            return outcome
        time.sleep(0.1)


def test_a_repeated_request_is_answered_from_memory(gated: Gated) -> None:
    with gated.sdk("acme") as client:
        wish = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "temperature": 1.0, "seed": None}
        headers = {"Idempotency-Key": "order-66"}
        first, second = (client.completions.create(**wish, extra_headers=headers) for _ in range(2))  # type: ignore[call-overload]
        assert (first.id, first.choices[0].text) == (second.id, second.choices[0].text)
        with pytest.raises(openai.UnprocessableEntityError):
            client.completions.create(**{**wish, "prompt": "other"}, extra_headers=headers)  # type: ignore[call-overload]


def test_front_ends_share_answers_and_limits(gated: Gated) -> None:
    """Each request comes over a connection of its own, to whichever front end takes it."""
    url = f"{gated.process.http}/v1/completions"
    headers = {"x-api-key": gated.keys["hooli"], "Idempotency-Key": "order-67"}
    wish = {"prompt": PROMPT, "max_tokens": 20, "temperature": 1.0}

    def ask(_: int) -> httpx.Response:
        return httpx.post(url, json=wish, headers=headers, timeout=60)

    with ThreadPoolExecutor(8) as threads:
        replies = [*threads.map(ask, range(8)), ask(8)]
    assert [reply.status_code for reply in replies] == [200] * 9
    assert len({reply.content for reply in replies}) == 1
    assert sum("idempotency-replayed" in reply.headers for reply in replies) == 8
    plain = {"x-api-key": gated.keys["hooli"]}
    remaining, before = math.inf, time.monotonic()
    for _ in range(8):
        asked = time.monotonic()
        reply = httpx.post(url, json={**wish, "max_tokens": 1}, headers=plain, timeout=60)
        left = int(reply.headers["x-ratelimit-remaining-tokens"])
        flowed = 50 * (time.monotonic() - before)
        assert left <= remaining - 101 + flowed + 1, "whichever front end is asked, no more than flowed in"
        remaining, before = left, asked


def test_the_bill_is_what_was_delivered(gated: Gated) -> None:
    """The last of the tests that use this process: it stops it."""
    got = 0
    request_ids = ("bill-whole", "bill-stream", "bill-left", "bill-grpc")
    with gated.sdk("acme") as client:
        wish = {"model": "tiny", "prompt": "hello", "max_tokens": 20, "extra_body": {"ignore_eos": True}}
        for stream, name in ((False, "bill-whole"), (True, "bill-stream")):
            reply = client.completions.create(**wish, n=2, stream=stream, extra_headers={"X-Request-Id": name})  # type: ignore[call-overload]
            got += 40
            if stream:
                assert sum(chunk.choices[0].finish_reason == "length" for chunk in reply) == 2
        with client.completions.create(
            **{**wish, "max_tokens": 100}, stream=True, extra_headers={"X-Request-Id": "bill-left"}
        ) as left:  # type: ignore[call-overload]
            next(iter(left))
    with grpc.insecure_channel(gated.process.grpc) as channel:
        request = pb.GenerateRequest(text="hello", stopping=pb.Stopping(max_tokens=20, ignore_eos=True))
        metadata = (("authorization", f"Bearer {gated.keys['acme']}"), ("x-request-id", "bill-grpc"))
        got += sum(len(event.delta.token_ids) for event in InferenceStub(channel).Generate(request, metadata=metadata))
    assert gated.process.stop() == 0
    events = [event for event in usage(gated.usage_log) if event["request_id"] in request_ids]
    by_request = {name: [event for event in events if event["request_id"] == name] for name in request_ids}
    told = {name: sum(event["completion_tokens"] for event in of) for name, of in by_request.items()}
    assert 0 < told.pop("bill-left") <= 100
    assert told == {"bill-whole": 40, "bill-stream": 40, "bill-grpc": 20}
    assert sum(told.values()) == got
    assert sum(event["final"] for event in events) == 2 + 2 + 1 + 1
    assert {event["tenant"] for event in events} == {"acme"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "--allow-unauthenticated"),
        (("--keys", "no/such/file"), "no/such/file"),
        (("--usage-log", "/no/such/directory/usage"), "usage_log"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FREE_PORTS, "no/such/model", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
