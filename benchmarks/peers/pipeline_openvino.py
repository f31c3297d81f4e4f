"""OpenVINO GenAI's pipeline, stepped: what runs in the process that `host_openvino` starts. Needs openvino-genai."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import openvino
import openvino_genai

CACHE_GB, ROWS, STEP_TOKENS = 1, 64, 512


def run(pipe: Connection, model: str, threads: int) -> None:
    """Step the pipeline: takes (number, prompt, tokens to generate), gives each step's tokens and the numbers that ended."""
    settings = openvino_genai.SchedulerConfig()
    settings.cache_size, settings.max_num_seqs, settings.max_num_batched_tokens = CACHE_GB, ROWS, STEP_TOKENS
    settings.enable_prefix_caching = True
    properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, settings, "CPU", properties)
    running: dict[int, Any] = {}
    pipe.send("ready")
    while True:
        while not running or pipe.poll():
            number, prompt, count = pipe.recv()
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
            running[number] = pipeline.add_request(number, openvino.Tensor(np.array([prompt], np.int64)), config)
        pipeline.step()
        some = [(number, tokens) for number, handle in running.items() for tokens in _tokens(handle)]
        ended = [number for number, handle in running.items() if handle.get_status() != openvino_genai.GenerationStatus.RUNNING]
        for number in ended:
            del running[number]
        pipe.send((some, ended))


def _tokens(handle: Any) -> list[list[int]]:
    found = []
    while handle.can_read():
        found += [list(output.generated_ids) for output in handle.read().values()]
    return found
