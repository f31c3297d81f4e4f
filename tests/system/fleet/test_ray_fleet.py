"""`python -m jaxserve.fleet` as people run it: a local Ray cluster, two replicas, an ingress, and an engine that is killed."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import grpc
import httpx
import openai
import psutil
import pytest

from jaxserve.fleet import main
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.hash_server import until
from tests.support.serve_process import ROOT, Process, environment, start

pytest.importorskip("ray", reason="NOT CHECKED: fleets, for Ray is not here")

STREAMS, LENGTH = 8, 480
LINES = 24
DAILY = 60
FLEET = """
model: pico
max-model-len: 512
max-num-seqs: 4
max-num-batched-tokens: 32
before-ready: fewest
port: 0
grpc-port: 0
drain-timeout: 2
state-dir: {folder}/state
keys: {folder}/keys.toml
ingress: {{replicas: 2}}
pools:
  default:
    replicas: 2
    cpus: 0.1
  small:
    model: pico
    served-model-name: small
    cpus: 0.1
    engine: {{max-model-len: 128}}
routing:
  router: least_loaded
ray:
  address: local
"""
KEYS = """
[[key]]
sha256 = "{one}"
tenant = "all"

[[key]]
sha256 = "{limited}"
tenant = "acme"
daily_tokens = {daily}
"""
CONNECTED = """
import psutil, ray
from server.fleet.cluster import connected

with connected(None, keep=False):
    family = psutil.Process().children(recursive=True)
    print(len(ray.nodes()), *(child.name() for child in family if child.name() == "raylet"))
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "fleet.yaml").write_text(FLEET.format(folder=folder))
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("one", "limited")}
    (folder / "keys.toml").write_text(KEYS.format(daily=DAILY, **digests))
    process = start(folder, str(folder / "fleet.yaml"), "--name", uuid.uuid4().hex, module="jaxserve.fleet")
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()


@pytest.fixture
def sdk(fleet: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.http}/v1", api_key="one", max_retries=0) as client:
        yield client


def descendants(fleet: Process, module: str) -> list[psutil.Process]:
    """Processes that run a module, of the cluster that the command started."""
    family = psutil.Process(fleet.popen.pid).children(recursive=True)
    return [one for one in family if any(module in word and "runpy" in word for word in one.cmdline())]


def metric(fleet: Process, name: str) -> float:
    """Its value; with labels or without, where one series is not 0."""
    found = re.findall(
        rf"^jaxserve:{re.escape(name)}(?:{{.*}})? (\S+)$", httpx.get(f"{fleet.http}/metrics", timeout=60).text, re.MULTILINE
    )
    assert found, name
    return sum(map(float, found))


def streams(sdk: openai.OpenAI, running: Event) -> list[str]:
    """Greedy and seeded ones, side by side; says when half of them have begun."""
    begun: set[int] = set()

    def read(number: int) -> str:
        text = ""
        events = sdk.completions.create(
            model="pico",
            prompt=f"{number}, {number + 1}, {number + 2},",
            temperature=number % 2,
            seed=number,
            max_tokens=LENGTH,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for event in events:
            text += event.choices[0].text if event.choices else ""
            begun.add(number)
            if len(begun) == STREAMS // 2:  # of all the first could be at their ends when the last is read
                running.set()
        return text

    with ThreadPoolExecutor(STREAMS) as readers:
        return list(readers.map(read, range(STREAMS)))


def test_http_and_grpc_answer_through_the_ingress(fleet: Process, sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(model="pico", messages=[{"role": "user", "content": "What is 17 + 25?"}], temperature=0)
    assert reply.choices[0].message.content is not None
    assert "42" in reply.choices[0].message.content
    request = pb.GenerateRequest(text="1, 2, 3,", sampling=pb.Sampling(temperature=0), stopping=pb.Stopping(max_tokens=8))
    with grpc.insecure_channel(fleet.grpc) as channel:
        events = list(InferenceStub(channel).Generate(request, metadata=(("authorization", "Bearer one"),)))
    whole = sdk.completions.create(model="pico", prompt="1, 2, 3,", temperature=0, max_tokens=8)
    assert "".join(event.delta.text for event in events) == whole.choices[0].text
    assert httpx.get(f"{fleet.http}/ready", timeout=60).status_code == 200
    found = 'fleet_replicas{model_name="pico"}'  # as the front end sees them, and the batch worker
    until(lambda: metric(fleet, found) in (2.0, 2.0 * 2))
    with sdk.files.with_streaming_response.list() as files:
        assert files.status_code == 200


def test_each_model_has_its_own_pools(fleet: Process, sdk: openai.OpenAI) -> None:
    assert [one.id for one in sdk.models.list()] == ["pico", "small"]
    small = sdk.completions.create(model="small", prompt="1, 2, 3,", temperature=0, max_tokens=8)
    assert small.model == "small"
    assert (
        small.choices[0].text
        == sdk.completions.create(model="pico", prompt="1, 2, 3,", temperature=0, max_tokens=8).choices[0].text
    )
    with pytest.raises(openai.BadRequestError, match="128"):  # its context is its own
        sdk.completions.create(model="small", prompt="1, 2, 3,", max_tokens=200)
    with pytest.raises(openai.NotFoundError, match="this server has 'pico', 'small'"):
        sdk.completions.create(model="large", prompt="1")


def ask(address: str, key: str, **headers: str) -> httpx.Response:
    body = {"model": "pico", "prompt": "1, 2, 3,", "max_tokens": 8, "temperature": 0}
    return httpx.post(f"{address}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}", **headers}, timeout=60)


def test_limits_and_idempotency_keys_hold_across_ingresses(fleet: Process) -> None:
    (other,) = fleet.others
    spent, refusals = 0, 0
    for address in (fleet.http, other) * 10:
        reply = ask(address, "limited")
        if reply.status_code == 200:
            spent += reply.json()["usage"]["total_tokens"]
        else:
            refusals += 1
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "insufficient_quota")
    assert 0 < DAILY - spent < 2 * 16  # less than one more request, or its estimate, is left
    assert refusals > 10
    first, again = (ask(address, "one", **{"Idempotency-Key": "k"}) for address in (fleet.http, other))
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json() == first.json()


def test_a_stream_is_resumed_at_another_ingress_and_ended_there(fleet: Process) -> None:
    (other,) = fleet.others
    key = {"Authorization": "Bearer one"}
    body = {"model": "pico", "prompt": "1, 2, 3,", "max_tokens": 200, "ignore_eos": True, "stream": True}
    named = {**key, "X-Conversation-Id": "chat-7"}
    with httpx.stream("POST", f"{fleet.http}/v1/completions", json=body, headers=named, timeout=60) as first:
        text = next(piece for piece in first.iter_text() if "id: " in piece)
    got = text[text.index("id: ") : text.rindex("\n\n") + 2]  # whole events
    have = got.count("id: ")
    rest = httpx.get(f"{other}/v1/streams/chat-7", params={"from": have}, headers=key, timeout=60).text
    whole = httpx.get(f"{fleet.http}/v1/streams/chat-7", headers=key, timeout=60).text
    assert whole == ": keep-alive\n\n" + got + rest.removeprefix(": keep-alive\n\n")
    assert rest.endswith("data: [DONE]\n\n")
    assert httpx.delete(f"{other}/v1/streams/chat-7", headers=key, timeout=60).status_code == 200
    assert [httpx.get(f"{one}/v1/streams/chat-7", headers=key, timeout=60).status_code for one in (fleet.http, other)] == [
        404,
        404,
    ]


def test_streams_go_on_where_their_engine_is_killed(fleet: Process, sdk: openai.OpenAI) -> None:
    engines = descendants(fleet, "jaxserve.engine.remote.child")
    before = {one: one.cpu_times().user for one in engines}
    wanted = streams(sdk, Event())
    running, engine = Event(), max(engines, key=lambda one: one.cpu_times().user - before[one])  # of the model that ran
    with ThreadPoolExecutor(1) as asking:
        got = asking.submit(streams, sdk, running)
        assert running.wait(60)
        engine.kill()
        assert got.result(120) == wanted
    assert metric(fleet, "fleet_resumed_total") > 0.0
    assert metric(fleet, "fleet_lost_total") >= 1.0


def actors(fleet: Process, name: str) -> list[psutil.Process]:
    family = psutil.Process(fleet.popen.pid).children(recursive=True)
    return [one for one in family if one.cmdline()[:1] and one.cmdline()[0].startswith(f"ray::{name}")]


def test_a_batch_outlives_its_ingress_and_what_keeps_the_fleet(fleet: Process) -> None:
    """kill -9 of the ingress that runs it, of Ray Serve's controller, and of the ledger: every line is answered, once."""
    body = {"prompt": "1, 2, 3,", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    of_models = ({"model": "pico"}, {"model": "small", "max_tokens": 50})
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": {**body, **of_models[n % 2]}}
        for n in range(LINES)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (worker,) = descendants(fleet, "server.processes.batches")
    ingress = worker.parent()
    assert ingress is not None
    with openai.OpenAI(base_url=f"{fleet.http}/v1", api_key="one", max_retries=0) as client:
        uploaded = client.files.create(file=("lines.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h")
    for one in (ingress, *actors(fleet, "ServeController"), *actors(fleet, "LedgerActor")):
        one.kill()
    alive = next(address for address in (fleet.http, *fleet.others) if is_there(address))
    with openai.OpenAI(base_url=f"{alive}/v1", api_key="one", max_retries=0) as client:
        done = until_done(client, batch.id)
        assert done.status == "completed"
        assert done.output_file_id is not None
        answered = [json.loads(line)["custom_id"] for line in client.files.content(done.output_file_id).text.splitlines()]
    assert sorted(answered, key=int) == [str(n) for n in range(LINES)]
    limited = ask(alive, "limited")
    while limited.status_code == 503:  # while the ledger learns what was
        time.sleep(0.1)
        limited = ask(alive, "limited")
    assert limited.json()["error"]["code"] == "insufficient_quota"


def is_there(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


def until_done(client: openai.OpenAI, batch_id: str) -> openai.types.Batch:
    """The batch at its end."""
    deadline = time.monotonic() + 120
    while (batch := client.batches.retrieve(batch_id)).status in ("validating", "in_progress", "finalizing"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
    return batch


def test_another_fleet_of_this_machine_is_on_a_cluster_of_its_own(fleet: Process) -> None:
    """Not on the first one's, which ends with it."""
    command = [sys.executable, "-c", CONNECTED]  # importing Ray Serve warns
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["1", "raylet"], done.stderr


def test_it_is_taken_away_at_the_end(fleet: Process) -> None:
    """Last of this file: nothing of it is left."""
    family = psutil.Process(fleet.popen.pid).children(recursive=True)
    assert fleet.stop(90) == 0
    assert psutil.wait_procs(family, timeout=30)[1] == []


def test_a_file_that_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text("pools: {a: {replicas: 0}}")
    assert main([str(tmp_path / "fleet.yaml"), "--check"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
