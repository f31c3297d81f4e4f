"""gRPC of a server process that asks for keys: Generate, and Triton's own client over KServe's protocol."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import grpc
import openai
import pytest

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.serve_process import ROOT
from tests.system.interop.conftest import Gated
from tests.system.interop.programs import run

pytestmark = pytest.mark.fleet

PROMPT, TOKENS = "1 2 3 4", 6


@pytest.fixture
def text(pico: Gated) -> str:
    """What completions answer over HTTP."""
    with openai.OpenAI(base_url=pico.base_url, api_key=pico.keys["acme"], max_retries=0) as sdk:
        return sdk.completions.create(model="pico", prompt=PROMPT, temperature=0, max_tokens=TOKENS).choices[0].text


def test_generate(pico: Gated, text: str) -> None:
    request = pb.GenerateRequest(text=PROMPT, sampling=pb.Sampling(temperature=0), stopping=pb.Stopping(max_tokens=TOKENS))
    with grpc.insecure_channel(pico.process.grpc) as channel:
        events = list(InferenceStub(channel).Generate(request, metadata=(("authorization", f"Bearer {pico.keys['acme']}"),)))
    assert "".join(event.delta.text for event in events) == text
    assert events[-1].finished.usage.completion_tokens == TOKENS


def test_tritons_client(pico: Gated, text: str, tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "tests/support/triton_client.py"), pico.process.grpc, str(TOKENS), pico.keys["acme"]]
    seen = json.loads(run(program, cwd=tmp_path).stdout)
    assert (seen["live"], seen["ready"], seen["index"]) == (True, True, [["pico", "READY"]])
    assert seen["whole"] == {"text": text, "reason": "length", "tokens": TOKENS}
    assert set(seen["streamed"]["texts"].values()) == {text}
