"""The table of fields that clients know and this server does not have: refused, warned of, dropped, or without effect."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from anthropic.types import message_create_params as anthropic
from anthropic.types.beta import message_create_params as anthropic_beta
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses
from pydantic import BaseModel, ValidationError

from jaxserve.clock import VirtualClock
from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConfigError, InvalidRequestError
from server.http.failures import from_validation
from server.http.fields import EngineFields, SamplingFields
from server.http.generate.protocol import GenerateSamplingParams
from server.http.messages.protocol import CountTokensRequest, MessagesRequest
from server.http.protocol import ChatRequest, CompletionRequest
from server.http.responses.protocol import ResponsesRequest
from server.http.tokens import TokenizeChatRequest
from server.processes.supervisor import check_ports
from server.unsupported.check import checked
from server.unsupported.notes import IGNORED_HEADER, NOTES, WARNING_HEADER, Lenience, Notes, names_of
from server.unsupported.table import FIELDS, Kind

SAY = [{"role": "user", "content": "hi"}]
BODIES: dict[type[SamplingFields], dict[str, Any]] = {
    ChatRequest: {"messages": SAY},
    CompletionRequest: {"prompt": "hi"},
    ResponsesRequest: {"input": "hi"},
    MessagesRequest: {"messages": SAY, "max_tokens": 1},
    GenerateSamplingParams: {},
}
KINDS = {kind: [name for name in FIELDS if FIELDS[name].kind is kind] for kind in Kind}


def refusal(model: type[BaseModel], body: dict[str, Any]) -> InvalidRequestError:
    with pytest.raises(ValidationError) as info:
        model.model_validate(body)
    return from_validation([{**error, "loc": ("body", *error["loc"])} for error in info.value.errors()], body)


def with_field(body: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    parent, _, member = name.partition(".")
    return {**body, parent: {member: value} if member else value}


@pytest.mark.parametrize("model", BODIES)
def test_what_would_change_the_answer_is_refused_by_name(model: type[SamplingFields]) -> None:
    for name in KINDS[Kind.REFUSED]:
        if name in model.model_fields.keys() | model.own_members:
            continue
        error = refusal(model, with_field(BODIES[model], name, "something"))
        dropping = f"(--ignore-unsupported {name} drops it)"
        assert error.message == f"{name} is not supported by this server yet: {FIELDS[name].instead} {dropping}"
        assert error.param == name
        for nothing in (None, "", [], {}, *FIELDS[name].neutral):
            model.model_validate(with_field(BODIES[model], name, nothing))


@pytest.mark.parametrize("model", BODIES)
def test_what_only_flavours_an_answer_passes_and_is_told(model: type[SamplingFields]) -> None:
    for name in [*KINDS[Kind.WARNED], *KINDS[Kind.NO_EFFECT]]:
        parent, _, member = name.partition(".")
        if name in model.model_fields or (member and parent not in model.model_fields):
            continue
        NOTES.set(notes := Notes(Lenience(VirtualClock())))
        model.model_validate(with_field(BODIES[model], name, 0.37))
        told = notes.headers().get(WARNING_HEADER, "")
        assert (name in told) is (FIELDS[name].kind is Kind.WARNED)
        for nothing in (None, *FIELDS[name].neutral):
            NOTES.set(notes := Notes(Lenience(VirtualClock())))
            model.model_validate(with_field(BODIES[model], name, nothing))
            assert notes.headers() == {}


@pytest.mark.parametrize(
    ("model", "params"),
    [
        (ChatRequest, chat.CompletionCreateParamsBase),
        (CompletionRequest, completions.CompletionCreateParamsBase),
        (ResponsesRequest, responses.ResponseCreateParamsBase),
        (MessagesRequest, anthropic.MessageCreateParamsBase),
        (MessagesRequest, anthropic_beta.MessageCreateParamsBase),
    ],
)
def test_every_argument_of_the_sdks_is_known(model: type[EngineFields], params: Any) -> None:
    known = {*model.model_fields, *FIELDS, *model.own_unsupported, "stream_options", "fallback_credit_token"}
    assert set(params.__annotations__) - known == set()


def test_the_first_of_several_is_named_in_the_order_of_the_table() -> None:
    tools: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": None, "tools": [{}]}
    assert refusal(CompletionRequest, {"prompt": "hi", **tools}).param == "tools"
    CompletionRequest.model_validate({"prompt": "hi", "tool_choice": "auto"})  # without tools there is nothing to choose


def test_members_and_words_of_one_surface() -> None:
    assert refusal(ResponsesRequest, {"input": "hi", "text": {"format": {"type": "json_schema"}}}).param == "text.format.schema"
    assert refusal(ChatRequest, {"messages": SAY, "text": {"format": {"type": "json_object"}}}).param == "text.format"
    config = {"effort": "low", "task_budget": {"type": "tokens", "total": 9}}
    assert refusal(MessagesRequest, {**BODIES[MessagesRequest], "output_config": config}).param == "output_config.task_budget"
    ResponsesRequest.model_validate({"input": "hi", "text": {"format": {"type": "text"}, "verbosity": "medium"}})
    assert refusal(ResponsesRequest, {"input": "hi", "prompt": {"id": "x"}}).param == "prompt"
    called = [{"role": "assistant", "content": "", "function_call": {"name": "f"}}]
    assert refusal(ChatRequest, {"messages": called}).message.startswith("messages[0].function_call is not supported by this")


def test_only_what_changes_a_prompt_matters_where_tokens_are_counted() -> None:
    for model in (CountTokensRequest, TokenizeChatRequest):
        assert refusal(model, {"messages": SAY, "documents": [{}]}).param == "documents"
        model.model_validate({"messages": SAY, "response_format": {"type": "json_object"}, "max_tokens": 5})


def test_fields_that_are_ignored_are_dropped_and_told() -> None:
    NOTES.set(notes := Notes(Lenience(VirtualClock(), names_of("tools, tool_choice,text.format"))))
    body = {"tools": [{}], "tool_choice": "required", "text": {"format": {"type": "json_object"}, "x": 1}, "other": 2}
    assert checked(body, ()) == {"text": {"x": 1}, "other": 2}
    assert notes.headers() == {IGNORED_HEADER: "tools, tool_choice, text.format"}
    with pytest.raises(InvalidRequestError, match=r"^response_format is not"):  # where an endpoint has none of its own
        checked({"response_format": {"type": "json_object"}}, ())
    with pytest.raises(ConfigError, match="'tool'") as info:  # before anything is started
        check_ports(ServerConfig(port=0, grpc_port=0, ignore_unsupported="tools,tool"))
    assert info.value.param == "ignore_unsupported"


def test_members_whose_object_is_passed_over_and_names_that_only_look_like_members() -> None:
    body = {"output_config": {"effort": ""}, "reasoning": {"effort": "none", "summary": "auto"}, "text.format": 1, "tools": []}
    assert checked(body, ()) == {"text.format": 1}


def test_the_log_has_a_line_a_minute_for_each_field(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    lenience = Lenience(clock, {"tools"})
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            Notes(lenience).warned("mirostat")
            Notes(lenience).dropped("tools")
            clock.advance(14.0)
        assert [cast(tuple[str], record.args)[0] for record in caplog.records if record.args] == ["mirostat", "tools"]
        clock.advance(1.0)
        Notes(lenience).warned("mirostat")
    assert len(caplog.records) == 3
