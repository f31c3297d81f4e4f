"""A pool that scales on a local Ray cluster: two replicas while there is work for them, then one, and no broken stream."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import openai
import pytest

from tests.support.serve_process import Process, start

pytest.importorskip("ray", reason="NOT CHECKED: fleets, for Ray is not here")

CLIENTS, LENGTH = 4, 480
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
    replicas: {{min: 1, max: 2, replica-work: 2000, usual-prefill: 1, tolerated: 1, cooldown-seconds: 8, start-seconds: 5}}
    cpus: 0.1
routing:
  router: least_loaded
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("scaling")
    (folder / "fleet.yaml").write_text(FLEET.format(folder=folder))
    process = start(folder, str(folder / "fleet.yaml"), "--name", folder.name, module="jaxserve.fleet")
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.stop(90)
        process.popen.kill()
        process.popen.wait()


def replicas(fleet: Process) -> float:
    """As the front end and the batch worker see them."""
    found = re.search(r"^jaxserve:fleet_replicas{.*} (\S+)$", httpx.get(f"{fleet.http}/metrics", timeout=60).text, re.MULTILINE)
    assert found is not None
    return float(found[1]) / 2.0


def wait_until(what: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    waiting = Event()
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        waiting.wait(0.2)


def stream(sdk: openai.OpenAI, number: int) -> int:
    """Tokens that a greedy stream has; raises if it breaks."""
    events = sdk.completions.create(
        model="pico",
        prompt=f"{number}, {number + 1},",
        temperature=0,
        max_tokens=LENGTH,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    usage = None
    for event in events:
        usage = event.usage or usage
    assert usage is not None
    return usage.completion_tokens


def test_a_second_replica_comes_for_its_work_and_goes_without_breaking_a_stream(fleet: Process) -> None:
    """Four streams are twice the work that a replica is meant to have, one is half of it."""
    enough, done = Event(), Event()
    with openai.OpenAI(base_url=f"{fleet.http}/v1", api_key="none", max_retries=0) as sdk, ThreadPoolExecutor(CLIENTS) as clients:

        def ask_on(number: int) -> list[int]:
            """All but the first ask until there are replicas enough."""
            lengths = []
            while not done.is_set() and (number == 0 or not enough.is_set()):
                lengths.append(stream(sdk, number))
            return lengths

        asking = [clients.submit(ask_on, number) for number in range(CLIENTS)]
        try:
            assert replicas(fleet) == 1.0
            wait_until(lambda: replicas(fleet) == 2.0, 240)
            enough.set()
            wait_until(lambda: replicas(fleet) == 1.0, 240)
        finally:
            enough.set()
            done.set()
        lengths = [length for one in asking for length in one.result(60)]
    assert lengths
    assert set(lengths) == {LENGTH}
