"""Responses of a form - thinking that ends, calls, content - on a model of random weights."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from jaxserve.chat_parsing import ChatParser, Message, collect, find_template, read_tools
from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import BuiltEngine, build_engine
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.types import FinishReason
from tests.support.engine import Run, run, silent
from tests.support.tiny_checkpoint import write_tiny_checkpoint

BUDGET, END = 6, "\n</think>\n\n"
PROMPT = [40, 41, 42, 90, 91, 92]
TEMPLATE = find_template("", tool_call_parser="hermes", reasoning_parser="qwen3")
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FLAG = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "additionalProperties": False}
TOOLS = [
    {"name": "get_weather", "parameters": WEATHER, "strict": True, "path": "tools[0].function.parameters"},
    {"name": "get_time", "parameters": {**FLAG}, "strict": False, "path": "tools[1].function.parameters"},
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> BuiltEngine:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(directory)
    settings = {"model": str(directory), "load_format": "dummy", "dtype": "float32", "max_model_len": 256, "page_size": 8}
    limits = {
        "num_pages": 160,
        "max_num_seqs": 4,
        "before_ready": "fewest",
        "max_num_batched_tokens": 16,
        "late_compiles": "raise",
    }
    return build_engine(
        EngineConfig.from_settings({**settings, **limits}), strict_length=True, clock=RealClock(), progress=silent
    )


def params(n: int = 1, **form: Any) -> SamplingParams:
    assert TEMPLATE is not None
    response = ResponseParams(template=json.dumps(TEMPLATE.spec), **form)
    return SamplingParams(n=n, max_tokens=240, seed=11, temperature=1.0, structured_outputs=response)


def texts(engine: BuiltEngine, ran: Run) -> list[str]:
    assert all(updates[-1].finish_reason is FinishReason.STOP for updates in ran.updates), ran.updates
    assert engine.tokenizer is not None
    return [engine.tokenizer.decode([token for token in tokens if token > 3]) for tokens in ran.tokens]


def read(text: str, *, begun: bool = False) -> Message:
    assert TEMPLATE is not None
    parser = ChatParser(TEMPLATE, tools=read_tools(TOOLS), prompt="<|im_start|>assistant\n<think>\n" if begun else "")
    return collect([*parser.feed(text), *parser.finish()])


def test_thinking_ends_in_time_and_then_there_is_a_call(engine: BuiltEngine) -> None:
    wanted = params(2, thinking="open", max_thinking_tokens=BUDGET, tools=json.dumps(TOOLS), required=True, parallel=False)
    ran = run(engine, [PROMPT], wanted)
    found = texts(engine, ran)
    assert len(set(found)) == 2
    for text in found:
        message = read(text, begun=True)
        thought = text.partition(END)[0]
        assert BUDGET <= len(thought.encode()) <= BUDGET + 3, "a byte a token, and whole characters"
        (call,) = message.tool_calls
        schemas = {tool["name"]: tool["parameters"] for tool in TOOLS}
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])  # type: ignore[arg-type]
        assert not message.content
    assert ran.scheduler.counts().forced_tokens > 60, "of the end of thinking and the envelope"
    assert engine.core.executor.counts().late_compiles == 0


def test_a_budget_of_nothing_and_content_of_a_form(engine: BuiltEngine) -> None:
    content = StructuredOutputsParams(json=FLAG, disable_any_whitespace=True)
    alone = texts(engine, run(engine, [PROMPT], params(thinking="none", content=content)))[0]
    assert alone in ('{"yes":true}', '{"yes":false}')
    ended = texts(engine, run(engine, [PROMPT], params(thinking="open", max_thinking_tokens=0, content=content)))[0]
    assert ended.startswith(END)
    assert ended[len(END) :].strip() in ('{"yes":true}', '{"yes":false}')
    one_by_one = run(engine, [PROMPT], [_with_logprobs(params(thinking="open", max_thinking_tokens=0, content=content))])
    assert texts(engine, one_by_one)[0] == ended
    assert one_by_one.scheduler.counts().forced_tokens == 0


def test_what_cannot_be_held_to_is_refused_when_it_comes(engine: BuiltEngine) -> None:
    bad = [{**TOOLS[0], "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}]
    with pytest.raises(InvalidRequestError, match=r"properties\.a\.not is not supported") as refused:
        run(engine, [PROMPT], params(tools=json.dumps(bad)))
    assert refused.value.param == "tools[0].function.parameters"


def _with_logprobs(given: SamplingParams) -> SamplingParams:
    return SamplingParams(max_tokens=given.max_tokens, seed=given.seed, structured_outputs=given.structured_outputs, logprobs=1)
