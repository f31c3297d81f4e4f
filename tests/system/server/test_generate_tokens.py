"""POST /inference/v1/generate and /inference/v1/abort_requests of a real server with API keys and two front ends."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live import random_tensors, write_checkpoint
from tests.support.serve_process import Process, Served
from tests.support.tiny_checkpoint import write_tiny_checkpoint

KEYS = {
    "acme-1": 'tenant = "acme"',
    "acme-2": 'tenant = "acme"',
    "globex": 'tenant = "globex"',
    "elsewhere": 'tenant = "elsewhere"\nmodels = ["other"]',
    "daily": 'tenant = "daily"\ndaily_tokens = 20',
    "admin": 'tenant = "ops"\nadmin = true',
}
PATH, ABORT = "/inference/v1/generate", "/inference/v1/abort_requests"
PROMPT = [40, 41, 42, 43, 44, 45]
CONTEXT, EOS = 2048, 1
FLAGS = ("--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--page-size", "16", "--num-pages", "512", "--frontends", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that recommends to take the likeliest token always, and the keys."""
    path = tmp_path_factory.mktemp("generate")
    directory = write_tiny_checkpoint(path / "tiny", context=CONTEXT)
    config = json.loads((directory / "config.json").read_text())
    write_checkpoint(directory, config, random_tensors(config, 1))
    (directory / "generation_config.json").write_text(json.dumps({"top_k": 1, "eos_token_id": EOS}))
    lines = [f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more}\n' for key, more in KEYS.items()]
    (path / "keys.toml").write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def server(served: Served, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    files = (
        "--keys",
        str(folder / "keys.toml"),
        "--usage-log",
        str(folder / "usage.jsonl"),
        "--state-dir",
        str(folder / "state"),
    )
    yield from served(tmp_path_factory.mktemp("server"), "--model", str(folder / "tiny"), *files, *FLAGS)


@contextmanager
def client(server: Process, key: str = "acme-1") -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=120, headers={"Authorization": f"Bearer {key}"}) as one:
        yield one


@pytest.fixture
def http(server: Process) -> Iterator[httpx.Client]:
    with client(server) as one:
        yield one


def body(fields: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    return {"token_ids": PROMPT, "sampling_params": {"max_tokens": 12, **params}, **(fields or {})}


def generate(http: httpx.Client, fields: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    reply = http.post(PATH, json=body(fields, **params))
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def streamed(http: httpx.Client, fields: dict[str, Any] | None = None, **params: Any) -> list[dict[str, Any]]:
    with http.stream("POST", PATH, json=body({"stream": True, **(fields or {})}, **params)) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert reply.status_code == 200, lines
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def refused(http: httpx.Client, sent: Any, path: str = PATH) -> tuple[str | None, str]:
    reply = http.post(path, json=sent)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    return error["param"], error["message"]


def test_the_tokens_are_those_of_text_completions(http: httpx.Client) -> None:
    params: dict[str, Any] = {"n": 2, "seed": 7, "max_tokens": 40, "logprobs": 2, "temperature": 1.3, "top_k": 0}
    reply = generate(http, {"request_id": "r1"}, **params)
    asked = {"prompt": PROMPT, "return_token_ids": True, "return_tokens_as_token_ids": True, **params}
    text = http.post("/v1/completions", json=asked).json()
    assert set(reply) == {
        *("request_id", "output_mode", "created", "model", "choices", "usage", "prompt_logprobs", "prompt_token_ids")
    }
    assert (reply["request_id"], reply["output_mode"], reply["model"]) == ("generate-tokens-r1", "tokens", "tiny")
    assert (reply["prompt_logprobs"], reply["prompt_token_ids"]) == (None, None)
    assert len({tuple(choice["token_ids"]) for choice in reply["choices"]}) == 2
    for index, (choice, same) in enumerate(zip(reply["choices"], text["choices"], strict=True)):
        assert set(choice) == {"index", "token_ids", "logprobs", "finish_reason"}
        assert (choice["index"], choice["token_ids"]) == (index, same["token_ids"])
        assert choice["finish_reason"] == same["finish_reason"]
        content = choice["logprobs"]["content"]
        assert [one["token_id"] for one in content] == choice["token_ids"]
        assert [one["logprob"] for one in content] == same["logprobs"]["token_logprobs"]
        for one, top in zip(content, same["logprobs"]["top_logprobs"], strict=True):
            first, second = one["top_logprobs"]
            assert first == {name: one[name] for name in ("token_id", "logprob", "rank")}
            assert second["rank"] == (2 if first["rank"] == 1 else 1)
            assert top[f"token_id:{second['token_id']}"] == second["logprob"]
    usage = text["usage"]
    assert reply["usage"]["completion_tokens"] == usage["completion_tokens"] == sum(len(c["token_ids"]) for c in reply["choices"])
    assert reply["usage"]["prompt_tokens"] == len(PROMPT)


def test_what_is_left_out_is_as_sampling_params_have_it(http: httpx.Client) -> None:
    """The checkpoint recommends top_k 1: other endpoints follow it, and a trainer's samples would not be those it asked for."""
    drawn = [generate(http, seed=seed)["choices"][0]["token_ids"] for seed in (1, 2)]
    assert drawn[0] != drawn[1]
    texts = [http.post("/v1/completions", json={"prompt": PROMPT, "seed": seed}).json()["choices"][0]["text"] for seed in (1, 2)]
    assert texts[0] == texts[1]
    whole = http.post(PATH, json={"token_ids": PROMPT, "sampling_params": {"temperature": 0, "ignore_eos": True}}).json()
    assert (len(whole["choices"][0]["token_ids"]), whole["choices"][0]["finish_reason"]) == (CONTEXT - len(PROMPT), "length")


def test_a_stream_tells_the_same(http: httpx.Client) -> None:
    params: dict[str, Any] = {"n": 2, "seed": 3, "logprobs": 1, "prompt_logprobs": 1}
    options = {"include_usage": True}
    for mode in ("tokens", "text"):
        whole = generate(http, {"output_mode": mode, "return_token_ids": True}, **params)
        first, *chunks, last = streamed(
            http, {"output_mode": mode, "return_token_ids": True, "stream_options": options}, **params
        )
        for name in ("prompt_token_ids", "prompt_logprobs"):
            assert first[name] == whole[name]
        assert whole["prompt_token_ids"] == PROMPT
        assert (first["choices"], last["choices"]) == ([], [])
        assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert {chunk["request_id"] for chunk in (first, *chunks, last)} == {first["request_id"]}
        assert {chunk["output_mode"] for chunk in chunks} == {whole["output_mode"]} == {mode}
        for choice in whole["choices"]:
            parts = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
            assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
            content = [one for part in parts if part["logprobs"] for one in part["logprobs"]["content"]]
            assert content == choice["logprobs"]["content"]
            assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]
            assert "".join(part.get("text", "") for part in parts) == choice.get("text", "")
            assert ("text" in choice) == (mode == "text")
            if mode == "text":
                assert choice["text"] == bytes(byte for one in content for byte in one["bytes"]).decode(errors="replace")


def test_tokens_that_end_an_output_are_told(http: httpx.Client) -> None:
    """A trainer scores what was drawn: an end of sequence that is left out would make every sum of log-probabilities wrong."""
    ending: list[tuple[int, int, dict[str, Any]]] = [
        (EOS, 3, {"logit_bias": {str(EOS): 100.0}, "min_tokens": 2}),
        (50, 1, {"logit_bias": {"50": 100.0}, "stop_token_ids": [50]}),
    ]
    for end, length, params in ending:
        (choice,) = generate(http, temperature=0, logprobs=0, **params)["choices"]
        assert (choice["token_ids"][-1], choice["finish_reason"]) == (end, "stop")
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == length
    (free,) = generate(http, {"output_mode": "text"}, temperature=0)["choices"]
    stop = free["text"][2:4]
    (cut,) = generate(http, {"output_mode": "text"}, temperature=0, stop=[stop])["choices"]
    assert (cut["text"], cut["finish_reason"]) == (free["text"][: free["text"].index(stop)], "stop")
    assert cut["token_ids"] == free["token_ids"][: len(cut["token_ids"])]
    assert len(cut["token_ids"]) > len(cut["text"])
    (same,) = generate(http, temperature=0, stop=stop, detokenize=False)["choices"]
    assert same["token_ids"] == cut["token_ids"]


def test_prompts_are_scored(http: httpx.Client) -> None:
    reply = generate(http, max_tokens=0, prompt_logprobs=2)
    asked = {"prompt": PROMPT, "max_tokens": 0, "prompt_logprobs": 2}
    assert reply["prompt_logprobs"] == http.post("/v1/completions", json=asked).json()["choices"][0]["prompt_logprobs"]
    assert [scores is None for scores in reply["prompt_logprobs"]] == [True] + [False] * (len(PROMPT) - 1)
    assert reply["choices"][0]["token_ids"] == []


def test_what_vllms_renderer_writes_is_taken(http: httpx.Client) -> None:
    """Every field of its GenerateRequest and its SamplingParams, with the values that ask for nothing."""
    params = {
        **{"n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "temperature": 0.0},
        **{"top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "stop": [], "stop_token_ids": [], "ignore_eos": False},
        **{"max_tokens": 4, "min_tokens": 0, "logprobs": None, "prompt_logprobs": None, "logprob_token_ids": None},
        **{"prompt_logprob_token_ids": None, "prompt_logprob_start": None, "flat_logprobs": False, "detokenize": True},
        **{"skip_special_tokens": True, "spaces_between_special_tokens": True, "include_stop_str_in_output": False},
        **{"output_kind": 2, "stream_interval": None, "skip_clone": True, "output_text_buffer_length": 0},
        **{"structured_outputs": None, "logit_bias": None, "allowed_token_ids": None, "extra_args": None, "bad_words": []},
        **{"skip_reading_prefix_cache": False, "thinking_token_budget": None, "repetition_detection": None},
        **{"routed_experts_prompt_start": 0, "trace_decode_token_ids": None, "_all_stop_token_ids": [1]},
    }
    fields = {
        **{"token_ids": PROMPT, "token_offsets": None, "features": None, "content_parts": None, "model": "tiny"},
        **{"sampling_params": params, "reasoning_ended": None, "reasoning_parser_kwargs": None, "output_mode": "tokens"},
        **{"return_token_ids": None, "return_token_logprobs": False, "return_top_k_logprobs": False, "stream": False},
        **{"stream_options": None, "cache_salt": "x", "priority": 0, "kv_transfer_params": None, "ec_transfer_params": None},
    }
    reply = http.post(PATH, json=fields)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"] == generate(http, temperature=0, max_tokens=4)["choices"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"token_ids": []}, "token_ids", "must not be empty"),
    ({"token_ids": "text"}, "token_ids", "list"),
    ({"token_ids": [1, -1]}, "token_ids", "token ids are integers from 0 to 259"),
    ({"token_ids": [10**6]}, "token_ids", "token ids are integers from 0 to 259"),
    ({"token_ids": [5] * CONTEXT}, "token_ids", "2048"),
    ({"sampling_params": None}, "sampling_params", ""),
    ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature", "between 0"),
    ({"sampling_params": {"max_tokens": 10**5}}, "sampling_params.max_tokens", "2048"),
    ({"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens", "at least 1"),
    ({"sampling_params": {"n": 1000}}, "sampling_params.n", "128"),
    ({"sampling_params": {"logprobs": 21}}, "sampling_params.logprobs", "20"),
    ({"sampling_params": {"logprobs": -1}}, "sampling_params.logprobs", "between 0"),
    ({"sampling_params": {"logit_bias": {"999": 1}}}, "sampling_params.logit_bias", "999"),
    ({"sampling_params": {"stop_token_ids": [999]}}, "sampling_params.stop_token_ids", "999"),
    ({"sampling_params": {"stop": [""]}}, "sampling_params.stop", "non-empty"),
    ({"sampling_params": {"stop": 5}}, "sampling_params.stop", "string"),
    ({"sampling_params": {"structured_outputs": {"json": {}, "regex": "a"}}}, "sampling_params.structured_outputs", ""),
    ({"sampling_params": {"structured_outputs": {"regex": "("}}}, "sampling_params.structured_outputs.regex", ""),
    ({"sampling_params": {"bad_words": ["x"]}}, "sampling_params.bad_words", "use logit_bias"),
    ({"sampling_params": {"extra_args": {"x": 1}}}, "sampling_params.extra_args", "leave it out"),
    ({"sampling_params": {"routed_experts_prompt_start": 3}}, "sampling_params.routed_experts_prompt_start", "routed experts"),
    ({"temperature": 0.5}, "temperature", "must be in sampling_params"),
    ({"max_tokens": 5}, "max_tokens", "must be in sampling_params"),
    ({"priority": 1}, "priority", "service_class"),
    ({"features": {"mm_hashes": {"image": ["a"]}}}, "features", "token ids of text"),
    ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params", "one engine"),
    ({"return_token_logprobs": True}, "return_token_logprobs", "sampling_params.logprobs"),
    ({"output_mode": "bytes"}, "output_mode", "tokens"),
    ({"output_mode": "text", "sampling_params": {"detokenize": False}}, "output_mode", "detokenize"),
    ({"cache_salt": ""}, "cache_salt", "empty"),
    ({"timeout": 0}, "timeout", ""),
    ({"request_id": ""}, "request_id", ""),
    ({"model": {}}, "model", ""),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG)
def test_what_is_wrong_is_named(http: httpx.Client, fields: dict[str, Any], param: str, words: str) -> None:
    found, message = refused(http, {**body(), **fields})
    assert found == param, message
    assert message.startswith(param)
    assert words in message


def test_what_is_missing_is_named(http: httpx.Client) -> None:
    assert refused(http, {"token_ids": PROMPT})[0] == "sampling_params"
    assert refused(http, {"sampling_params": {}})[0] == "token_ids"
    assert refused(http, {}, ABORT)[0] == "request_ids"
    assert refused(http, {"request_ids": [5]}, ABORT)[0] == "request_ids[0]"
    assert "1024" in refused(http, {"request_ids": ["x"] * 1025}, ABORT)[1]


def begun(stack: ExitStack, http: httpx.Client, request_id: str, **fields: Any) -> Iterator[dict[str, Any]]:
    """A stream that would go on to the end of the context, of which a token was read."""
    sent = body({"stream": True, "request_id": request_id, **fields}, max_tokens=CONTEXT - 10, ignore_eos=True)
    reply = stack.enter_context(http.stream("POST", PATH, json=sent))
    lines = (json.loads(line.removeprefix("data: ")) for line in reply.iter_lines() if line and not line.endswith("[DONE]"))
    assert next(lines)["choices"][0]["token_ids"]
    return lines


def test_a_tenant_ends_its_own_requests_through_any_front_end(server: Process) -> None:
    for number in range(4):  # connections lead to one front end or the other
        with ExitStack() as stack:
            own, other, aborting = (stack.enter_context(client(server, key)) for key in ("acme-1", "globex", "acme-2"))
            mine, theirs = begun(stack, own, f"same-{number}"), begun(stack, other, f"same-{number}")
            named = [f"generate-tokens-same-{number}", "generate-tokens-none", f"6:globex:generate-tokens-same-{number}"]
            reply = aborting.post(ABORT, json={"request_ids": named})
            assert (reply.status_code, reply.content) == (200, b"")
            *parts, last = [chunk["choices"][0] for chunk in mine]
            assert (last["token_ids"], last["finish_reason"]) == ([], "abort")
            assert sum(len(part["token_ids"]) for part in parts) < CONTEXT - 11
            if not number:
                assert [chunk["choices"][0] for chunk in theirs][-1]["finish_reason"] == "length"


def test_others_end_as_they_do_where_a_client_is_told_to_leave(server: Process) -> None:
    """An answer that is no trainer's must not look whole."""
    with client(server) as asking, client(server) as aborting, ThreadPoolExecutor(1) as threads:
        sent = {"prompt": PROMPT, "max_tokens": CONTEXT - 10, "ignore_eos": True, "request_id": "text"}
        answer = threads.submit(asking.post, "/v1/completions", json=sent)
        while not answer.done():
            aborting.post(ABORT, json={"request_ids": ["cmpl-text"]})
        assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (499, "cancelled")


def test_versions_of_the_weights_and_what_an_update_cuts_off(server: Process, folder: Path) -> None:
    """Streams follow each other, two at a time, until the update is there: it cuts off what runs, however long it loads."""

    def streams(updating: Future[httpx.Response]) -> Iterator[dict[str, Any]]:
        with client(server) as own:
            while not updating.done():
                yield streamed(own, max_tokens=CONTEXT - 10, ignore_eos=True)[-1]["choices"][0]

    with client(server) as http, client(server, "admin") as admin, ThreadPoolExecutor(3) as threads:
        update = {"update_info": {"path": str(folder / "tiny"), "mode": "abort", "weight_version": "v1"}}
        updating = threads.submit(admin.post, "/update_weights", json=update)
        both = [threads.submit(lambda: list(streams(updating))) for _ in range(2)]
        cut = [last for one in both for last in one.result() if last["finish_reason"] == "abort"]
        assert updating.result().status_code == 200
        assert cut
        assert {version["version"] for last in cut for version in last.get("weight_versions", [])} <= {"default"}
        (choice,) = generate(http)["choices"]
        assert choice["weight_versions"] == [{"version": "v1", "start": 0, "end": len(choice["token_ids"])}]


def test_keys_and_their_limits_hold(server: Process) -> None:
    with httpx.Client(base_url=server.http, timeout=60) as nobody:
        assert [nobody.post(path, json={}).status_code for path in (PATH, ABORT)] == [401, 401]
    with client(server, "elsewhere") as other:
        assert other.post(PATH, json=body()).status_code == 404
    with client(server, "daily") as daily:
        assert len(generate(daily, max_tokens=6, ignore_eos=True, n=2)["choices"]) == 2
        assert daily.post(PATH, json=body()).json()["error"]["code"] == "insufficient_quota"


def test_a_batch_of_it(http: httpx.Client) -> None:
    line = {"custom_id": "a", "method": "POST", "url": PATH, "body": body(temperature=0)}
    wrong = {**line, "custom_id": "b", "body": body(temperature=-1)}
    content = "".join(json.dumps(one) + "\n" for one in (line, wrong))
    file = http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}).json()
    asked = {"input_file_id": file["id"], "endpoint": PATH, "completion_window": "24h"}
    batch = http.post("/v1/batches", json=asked).json()
    while batch["status"] not in ("completed", "failed"):
        time.sleep(0.05)
        batch = http.get(f"/v1/batches/{batch['id']}").json()
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}, batch
    answered = json.loads(http.get(f"/v1/files/{batch['output_file_id']}/content").text)["response"]
    assert answered["body"]["choices"] == generate(http, temperature=0)["choices"]
    assert answered["request_id"] == answered["body"]["request_id"]
    failed = json.loads(http.get(f"/v1/files/{batch['error_file_id']}/content").text)
    assert failed["response"]["body"]["error"]["param"] == "sampling_params.temperature"
