"""What Triton's own client sees of a server, as JSON: `triton_client.py HOST:PORT TOKENS [KEY]`.

A program, since its protobuf package cannot share a process with ours.
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MODEL = "pico"
PROMPT = "1 2 3 4"


def inputs(text: str, sampling: dict[str, Any], **flags: bool) -> list[Any]:
    """Input tensors as users of Triton's vLLM backend make them."""
    made = []
    given: dict[str, str | bool] = {"text_input": text, "sampling_parameters": json.dumps(sampling), **flags}
    for name, value in given.items():
        tensor = triton.InferInput(name, [1], "BYTES" if isinstance(value, str) else "BOOL")
        tensor.set_data_from_numpy(np.array([value.encode()], object) if isinstance(value, str) else np.array([value], bool))
        made.append(tensor)
    return made


def whole(client: Any, count: int) -> dict[str, Any]:
    sampling = {"temperature": "0", "max_tokens": str(count)}
    flags = {"exclude_input_in_output": True, "return_finish_reason": True, "return_num_output_tokens": True}
    result = client.infer(MODEL, inputs(PROMPT, sampling, **flags))
    return {
        "text": result.as_numpy("text_output")[0].decode(),
        "reason": result.as_numpy("finish_reason")[0].decode(),
        "tokens": int(result.as_numpy("num_output_tokens")[0]),
    }


def streamed(client: Any, count: int, requests: int) -> dict[str, Any]:
    """Several requests on one stream, and one that fails."""
    replies: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: replies.put((result, error)))
    for index in range(requests):
        made = inputs(PROMPT, {"temperature": 0, "max_tokens": count}, stream=True)
        client.async_stream_infer(MODEL, made, request_id=str(index), enable_empty_final_response=True)
    client.async_stream_infer(MODEL, inputs(PROMPT, {"temperature": -1}), request_id="bad")
    texts = {str(index): "" for index in range(requests)}
    errors: list[str] = []
    open_requests = set(texts)
    while open_requests or not errors:
        result, error = replies.get(timeout=60)
        if error is not None:
            errors.append(str(error))
            continue
        response = result.get_response()
        texts[response.id] += result.as_numpy("text_output")[0].decode()
        if response.parameters["triton_final_response"].bool_param:
            open_requests.discard(response.id)
    client.stop_stream()
    return {"texts": texts, "errors": errors}


def failure(client: Any) -> str:
    try:
        client.infer(MODEL, inputs(PROMPT, {"beam_width": 3}))
    except InferenceServerException as error:
        return f"{error.status()} {error.message()}"
    return ""


class Bearer(triton.InferenceServerClientPlugin):  # type: ignore[misc]  # tritonclient has no types
    """Sends an API key with every call."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, request: Any) -> None:
        request.headers = {**request.headers, "authorization": f"Bearer {self.key}"}


def main() -> None:
    target, count, keys = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    with triton.InferenceServerClient(target) as client:
        for key in keys:
            client.register_plugin(Bearer(key))
        seen = {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "models": [client.is_model_ready(MODEL), client.is_model_ready("other")],
            "server": client.get_server_metadata().name,
            "inputs": [tensor.name for tensor in client.get_model_metadata(MODEL).inputs],
            "config": [tensor.data_type for tensor in client.get_model_config(MODEL).config.input],
            "index": [(model.name, model.state) for model in client.get_model_repository_index().models],
            "whole": whole(client, count),
            "succeeded": client.get_inference_statistics(MODEL).model_stats[0].inference_stats.success.count,
            "streamed": streamed(client, count, 3),
            "failure": failure(client),
        }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
