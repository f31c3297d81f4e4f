"""`python -m jaxserve.fleet` as people run it: a local Ray cluster, two replicas, an ingress, and an engine that is killed."""

from __future__ import annotations

import re
import subprocess
import sys
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
from server.proto import inference_pb2 as pb
from server.proto.inference_pb2_grpc import InferenceStub
from tests.support.hash_server import until
from tests.support.serve_process import ROOT, Process, environment, start

pytest.importorskip("ray", reason="NOT CHECKED: fleets, for Ray is not here")

STREAMS, LENGTH = 8, 480
FLEET = """
model: pico
max-model-len: 512
max-num-seqs: 8
port: 0
grpc-port: 0
drain-timeout: 2
state-dir: {folder}/state
pools:
  default:
    replicas: 2
    cpus: 0.1
routing:
  router: least_loaded
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
    process = start(folder, str(folder / "fleet.yaml"), "--name", folder.name, module="jaxserve.fleet")
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()


@pytest.fixture
def sdk(fleet: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.http}/v1", api_key="none", max_retries=0) as client:
        yield client


def descendants(fleet: Process, module: str) -> list[psutil.Process]:
    """Processes that run a module, of the cluster that the command started."""
    family = psutil.Process(fleet.popen.pid).children(recursive=True)
    return [one for one in family if any(module in word and "runpy" in word for word in one.cmdline())]


def metric(fleet: Process, name: str) -> float:
    found = re.search(rf"^jaxserve:{name}{{.*}} (\S+)$", httpx.get(f"{fleet.http}/metrics").text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def streams(sdk: openai.OpenAI, running: Event) -> list[str]:
    """Greedy and seeded ones, side by side; says when each has begun."""
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
            if len(begun) == STREAMS:
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
        events = list(InferenceStub(channel).Generate(request))
    whole = sdk.completions.create(model="pico", prompt="1, 2, 3,", temperature=0, max_tokens=8)
    assert "".join(event.delta.text for event in events) == whole.choices[0].text
    assert httpx.get(f"{fleet.http}/ready").status_code == 200
    until(lambda: metric(fleet, "fleet_replicas") == 2.0 * 2)  # as the front end and the batch worker see them
    with sdk.files.with_streaming_response.list() as files:
        assert files.status_code == 200


def test_streams_go_on_where_their_engine_is_killed(fleet: Process, sdk: openai.OpenAI) -> None:
    wanted = streams(sdk, Event())
    running, engine = Event(), descendants(fleet, "jaxserve.engine.remote.child")[0]
    with ThreadPoolExecutor(1) as asking:
        got = asking.submit(streams, sdk, running)
        assert running.wait(60)
        engine.kill()
        assert got.result(120) == wanted
    assert metric(fleet, "fleet_resumed_total") > 0.0
    assert metric(fleet, "fleet_lost_total") >= 1.0


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
