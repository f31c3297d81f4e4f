"""Request bodies: types are strict, null is the default, what cannot be honoured is refused by name."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from server.http.failures import from_validation
from server.http.pooling.protocol import ScoreRequest
from server.http.protocol import ChatRequest, CompletionRequest
from server.requests import in_words_of_client, sampling_params, template_arguments
from tests.support.scripted import ScriptedClient

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"prompt": "hi"}


def refusal(model: type[BaseModel], body: Any) -> InvalidRequestError:
    with pytest.raises(ValidationError) as info:
        model.model_validate(body)
    errors = [{**error, "loc": ("body", *error["loc"])} for error in info.value.errors()]
    return from_validation(errors, body)


def test_errors_of_a_field_by_an_older_name_have_a_param() -> None:
    assert refusal(ScoreRequest, {"text_1": 5, "text_2": ["a"]}).param == "queries"


@pytest.mark.parametrize(("model", "body"), [(ChatRequest, CHAT), (CompletionRequest, TEXT)])
def test_unknown_fields_are_ignored_and_null_is_the_default(model: type[ChatRequest], body: dict[str, Any]) -> None:
    nulls = dict.fromkeys(name for name in model.model_fields if name not in body)
    request = model.model_validate({**body, **nulls, "no_such_field": {"x": [1]}})
    assert sampling_params(ScriptedClient(), request.sampling(), {}) == SamplingParams(max_tokens=None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "warm"),
        ("temperature", "nan"),
        ("temperature", True),
        ("top_p", []),
        ("max_tokens", 1.5),
        ("max_tokens", "8.5"),
        ("max_tokens", "1e3"),
        ("max_tokens", True),
        ("n", "two"),
        ("n", "2" * 30),
        ("seed", 0.5),
        ("stop", 3),
        ("stop", ["a", 3]),
        ("stream", "true"),
        ("stream_options", [1]),
        ("logit_bias", [1]),
        ("stop_token_ids", ["a"]),
        ("allowed_token_ids", 7),
        ("ignore_eos", 1),
        ("user", 5),
        ("model", 5),
    ],
)
@pytest.mark.parametrize(("model", "body"), [(ChatRequest, CHAT), (CompletionRequest, TEXT)])
def test_wrong_types_name_the_field(model: type[BaseModel], body: dict[str, Any], field: str, value: Any) -> None:
    error = refusal(model, {**body, field: value})
    assert error.param is not None
    assert error.param.startswith(field)
    assert error.message.startswith(error.param)


@pytest.mark.parametrize(("model", "body"), [(ChatRequest, CHAT), (CompletionRequest, TEXT)])
def test_numbers_as_other_servers_take_them(model: type[ChatRequest], body: dict[str, Any]) -> None:
    given = {"max_tokens": 5.0, "n": "2", "top_k": "-1", "seed": "7", "temperature": "0.5", "top_p": "1", "timeout": "100.5"}
    request = model.model_validate({**body, **given})
    found = [getattr(request, name) for name in given]
    assert found == [5, 2, -1, 7, 0.5, 1.0, 100.5]
    assert [type(one) for one in found] == [int] * 4 + [float] * 3


@pytest.mark.parametrize(
    ("logprobs", "top", "wanted"),
    [(None, None, False), (None, 0, False), (None, 2, True), (True, None, True), (True, 0, True), (False, 2, False)],
)
def test_alternatives_are_log_probabilities_too_unless_there_are_to_be_none(
    logprobs: bool | None, top: int | None, wanted: bool
) -> None:
    assert ChatRequest.model_validate({**CHAT, "logprobs": logprobs, "top_logprobs": top}).with_logprobs() is wanted


@pytest.mark.parametrize(("model", "body"), [(ChatRequest, CHAT), (CompletionRequest, TEXT)])
def test_what_a_request_says_twice(model: type[ChatRequest], body: dict[str, Any]) -> None:
    model.model_validate({**body, "stream_options": {"include_usage": True}})  # of a stream that there is none of
    request = model.model_validate({**body, "service_tier": "flex", "service_class": "interactive_paid"})
    assert request.options()["service_class"] == "interactive_paid"  # our own word is the more exact one
    assert model.model_validate({**body, "service_tier": "flex"}).options()["service_class"] == "batch"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
        ({**CHAT, "tools": [{"type": "custom"}]}, "tools[0].type"),
        ({**CHAT, "tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({**CHAT, "thinking": {"type": "much"}}, "thinking.type"),
        ({"messages": [*CHAT["messages"], {"role": "user", "content": [{"type": "image_url"}]}]}, "messages[1].content"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        ({**CHAT, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ([], None),
        ("hi", None),
        (None, None),
    ],
)
def test_chat_refusals_name_the_place(body: Any, param: str | None) -> None:
    assert refusal(ChatRequest, body).param == param


@pytest.mark.parametrize("prompt", [1, {"a": 1}, [1, "a"], ["a", 1], [[1], "a"], [[1], [1.5]], [None], None])
def test_prompt_has_one_message_for_all_its_shapes(prompt: Any) -> None:
    error = refusal(CompletionRequest, {"prompt": prompt})
    assert (error.param, "list of token ids" in error.message) == ("prompt", True)


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_prompt_shapes(prompt: Any) -> None:
    assert CompletionRequest.model_validate({"prompt": prompt}).prompt == prompt


def test_best_of_may_say_what_n_says() -> None:
    CompletionRequest.model_validate({**TEXT, "best_of": 1})
    CompletionRequest.model_validate({**TEXT, "n": 3, "best_of": 3})
    assert refusal(CompletionRequest, {**TEXT, "best_of": 3}).param == "best_of"


def test_text_parts_reach_the_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = ChatRequest.model_validate({"messages": [{"role": "user", "content": parts}]})
    assert request.messages[0].parts() == parts


def test_every_sampling_field_reaches_the_engine() -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "max_tokens": 9,
        "min_tokens": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "typical_p": 0.75,
        "top_n_sigma": 1.5,
        "max_draft_tokens": 2,
        "seed": 3,
        "frequency_penalty": 0.25,
        "presence_penalty": -0.25,
        "repetition_penalty": 1.5,
        "logit_bias": {"7": -1.0},
        "allowed_token_ids": [7, 8],
        "stop": ["x"],
        "stop_token_ids": [4],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "logprobs_mode": "processed_logprobs",
        "prompt_logprobs": 1,
        "prompt_logprobs_start": 2,
    }
    params = sampling_params(ScriptedClient(), CompletionRequest.model_validate({**TEXT, **fields}).sampling(), {})
    expected = {**fields, "logit_bias": {7: -1.0}, "allowed_token_ids": (7, 8), "stop": ("x",), "stop_token_ids": (4,)}
    assert {name: getattr(params, name) for name in fields} == expected


@pytest.mark.parametrize("key", ["x", "-1", "1.0", "¹", ""])
def test_logit_bias_keys_are_token_ids(key: str) -> None:
    request = CompletionRequest.model_validate({**TEXT, "logit_bias": {key: 1.0}})
    with pytest.raises(InvalidRequestError, match="logit_bias"):
        sampling_params(ScriptedClient(), request.sampling(), {})


def test_errors_speak_the_words_of_the_client() -> None:
    error = in_words_of_client(
        InvalidRequestError("max_tokens must be at least 1", param="max_tokens"), {"max_tokens": "max_completion_tokens"}
    )
    assert isinstance(error, InvalidRequestError)
    assert (error.param, error.message) == ("max_completion_tokens", "max_completion_tokens must be at least 1")


@pytest.mark.parametrize(
    ("asked", "goes_on", "opens"), [(None, False, True), (None, True, False), (False, False, False), (False, True, False)]
)
def test_the_assistants_turn_is_opened_unless_a_message_goes_on(asked: bool | None, goes_on: bool, opens: bool) -> None:
    arguments = template_arguments({"x": 1}, "kwargs", add_generation_prompt=asked, continue_final_message=goes_on)
    assert arguments == {"x": 1, "add_generation_prompt": opens, "continue_final_message": goes_on}


def test_contradicting_template_arguments_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="add_generation_prompt"):
        template_arguments({}, "kwargs", add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="kwargs must not contain messages"):
        template_arguments({"messages": []}, "kwargs", add_generation_prompt=None, continue_final_message=False)
