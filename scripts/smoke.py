"""Start the server with the bundled model, ask it one question over HTTP and over gRPC, and stop it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
from openai import OpenAI

from jaxserve.proto import inference_pb2, inference_pb2_grpc

QUESTION, ANSWER = "What is 17 + 25?", "42"
READY = re.compile(r"^ready: (http://\S+) grpc://(\S+)", re.MULTILINE)
START_SECONDS = 900  # for what hangs: machines may be slow
STOP_SECONDS = 60


def main() -> None:
    """Run the smoke test; a failure shows the server's log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        try:
            smoke(log)
        except BaseException:
            print(f"--- the server's log\n{log.read_text()}---", file=sys.stderr)
            raise


def smoke(log: Path) -> None:
    """Serve, ask twice, stop; the server writes to `log`."""
    http_port, grpc_port = free_ports(2)
    command = [sys.executable, "-m", "jaxserve.serve", "--host", "127.0.0.1"]
    command += ["--port", str(http_port), "--grpc-port", str(grpc_port)]
    started = time.monotonic()
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        http, grpc_address = wait_until_ready(server, log)
        print(f"ready after {time.monotonic() - started:.1f} s on Python {sys.version.split()[0]}")
        expect("HTTP chat", ask_http(http))
        expect("gRPC Generate", ask_grpc(grpc_address))
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=STOP_SECONDS)
        if code != 0:
            raise SystemExit(f"the server exited with {code} after SIGTERM, not with 0")
        print("exit 0 after SIGTERM")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def wait_until_ready(server: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    """The HTTP URL and the gRPC address of the ready line."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if found := READY.search(log.read_text()):
            return found[1], found[2]
        if server.poll() is not None:
            raise SystemExit(f"the server exited with {server.returncode} before it was ready")
        time.sleep(0.1)
    raise SystemExit(f"the server was not ready after {START_SECONDS} s")


def ask_http(url: str) -> str:
    """The answer of a streamed chat through the openai SDK."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60, max_retries=0)
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=32, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def ask_grpc(address: str) -> str:
    """The answer of one Generate call with a chat prompt."""
    request = inference_pb2.GenerateRequest()
    message = request.chat.messages.add()
    message.role, message.content = "user", QUESTION
    request.sampling.temperature = 0.0
    request.stopping.max_tokens = 32
    with grpc.insecure_channel(address) as channel:
        events = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=60)
        return "".join(event.delta.text for event in events)


def expect(name: str, text: str) -> None:
    """Fail unless the text holds the answer."""
    if ANSWER not in text:
        raise SystemExit(f"{name}: asked {QUESTION!r}, expected {ANSWER!r}, got {text!r}")
    print(f"{name}: {QUESTION} -> {text.strip()}")


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(item.getsockname()[1]) for item in sockets]
    for item in sockets:
        item.close()
    return ports


if __name__ == "__main__":
    main()
