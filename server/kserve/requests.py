"""From ModelInferRequest to a job, and what of its output is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError, ModelNotFoundError
from jaxserve.proto import kserve_pb2 as pb
from jaxserve.sampling.structured import FIELD
from jaxserve.types import RequestOptions
from server.context import RequestContext
from server.kserve.parameters import FORMS, SAMPLING, form_in, from_json, plain, sampling_value
from server.kserve.tensors import inputs_of, one_bool, one_text
from server.requests import RequestJob, admit, check_not_empty, new_id, sampling_params
from server.structured import Form
from server.unsupported.check import checked

VERSION = "1"  # the only one of the model

# Input tensors that ask for an output tensor besides the text.
ASKED_BY = {
    "return_finish_reason": "finish_reason",
    "return_cumulative_logprob": "cumulative_logprob",
    "return_logprobs": "logprobs",
    "return_num_input_tokens": "num_input_tokens",
    "return_num_output_tokens": "num_output_tokens",
}
_FLAGS = ("stream", "exclude_input_in_output", *ASKED_BY)
INPUTS = {"text_input": "BYTES", "sampling_parameters": "BYTES", **dict.fromkeys(_FLAGS, "BOOL")}
REQUIRED = frozenset({"text_input"})
OUTPUTS = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "cumulative_logprob": "FP32",
    "logprobs": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}

_OPTIONS = ("service_class", "cache_salt", "queue_timeout", "max_total_tokens")
OPTIONS = frozenset({*_OPTIONS, "timeout"})
_DEFAULT_MAX_TOKENS = 16  # vLLM's


@dataclass(frozen=True, slots=True)
class Carrier:
    """What brought a request.

    Attributes:
        options_of: whose request it is and how long it may take, with the options that it names itself.
        tenant: what clients call the tenant.
        deadline: what they call a time limit that is not in the request.
    """

    context: RequestContext
    options_of: Callable[[Mapping[str, Any]], RequestOptions]
    tenant: str
    deadline: str = "timeout"


@dataclass(frozen=True, slots=True)
class Inference:
    """One request.

    Attributes:
        client: of the model that it names.
        id: the client's name for it, which every answer repeats; not unique.
        echo: text that goes before each whole output.
        outputs: names of the output tensors, in order.
    """

    client: EngineClient
    id: str
    job: RequestJob
    stream: bool
    echo: str
    outputs: tuple[str, ...]


def inference_of(client: EngineClient, request: pb.ModelInferRequest, carrier: Carrier) -> Inference:
    """Read a request. Raises InvalidRequestError naming the tensor or parameter, ModelNotFoundError, DeadlineError."""
    client = admit(client, request.model_name, carrier.context)
    check_version(request.model_version)
    inputs = inputs_of(request)
    for name in inputs:
        if name not in INPUTS:
            raise InvalidRequestError(f"there is no input {name[:100]!r}: known are {', '.join(INPUTS)}", param="inputs")
    if "text_input" not in inputs:
        raise InvalidRequestError("text_input is required", param="text_input")
    text = one_text(*inputs["text_input"])
    check_not_empty(text, "text_input")
    flags = {name: one_bool(*inputs[name]) for name in _FLAGS if name in inputs}
    stream = flags.get("stream", False)
    if stream and not flags.get("exclude_input_in_output", True):
        raise InvalidRequestError("exclude_input_in_output must be true with stream", param="exclude_input_in_output")
    outputs = _outputs(request, flags)
    fields, options, form = _parameters(request)
    own_names = {"prompt": "text_input", "tenant": carrier.tenant}
    if "sampling_parameters" in inputs:
        given, given_form = from_json(one_text(*inputs["sampling_parameters"]), "sampling_parameters")
        if form.params is not None and given_form.params is not None:
            name = form.names[FIELD]
            raise InvalidRequestError(f"{name} cannot be given together with {given_form.names[FIELD]}", param=name)
        form = given_form if form.params is None else form
        twice = min(given.keys() & fields.keys(), default=None)
        if twice is not None:
            raise InvalidRequestError(f"parameters.{twice} is in sampling_parameters too", param=f"parameters.{twice}")
        names = {**own_names, **{name: f"sampling_parameters.{name}" for name in given}}
        fields |= given
    else:
        names = own_names
    names = {**{name: f"parameters.{name}" for name in (*SAMPLING, *_OPTIONS, "timeout")}, **names, **form.names}
    fields[FIELD] = form.params
    if {"cumulative_logprob", "logprobs"}.intersection(outputs):
        fields.setdefault("logprobs", 0)
    granted = carrier.options_of(options)
    if granted.timeout != options.get("timeout"):
        names["timeout"] = carrier.deadline
    job = RequestJob(
        request_id=new_id("infer"),
        prompts=(text,),
        params=sampling_params(client, {"max_tokens": _DEFAULT_MAX_TOKENS, **fields}, names),
        options=granted,
        names=names,
    )
    echo = "" if stream or flags.get("exclude_input_in_output", False) else text
    return Inference(client, request.id, job, stream, echo, outputs)


def check_version(version: str) -> None:
    """Raise ModelNotFoundError unless it is the model's only version; none means that one."""
    if version not in ("", VERSION):
        raise ModelNotFoundError(f"the model has no version {version[:100]!r}, only {VERSION!r}", param="model_version")


def _outputs(request: pb.ModelInferRequest, flags: dict[str, bool]) -> tuple[str, ...]:
    """The outputs that are named; without names the text, and what flags ask for."""
    named = [output.name for output in request.outputs]
    for name in named:
        if name not in OUTPUTS:
            raise InvalidRequestError(f"there is no output {name[:100]!r}: known are {', '.join(OUTPUTS)}", param="outputs")
    asked = {output for flag, output in ASKED_BY.items() if flags.get(flag)}
    wanted = {*named, *asked} if named else {"text_output", *asked}
    return tuple(name for name in OUTPUTS if name in wanted)


def _parameters(request: pb.ModelInferRequest) -> tuple[dict[str, Any], dict[str, Any], Form]:
    """SamplingParams' arguments, options and the form of the output of the parameters map."""
    fields: dict[str, Any] = {}
    kept = checked(plain_parameters(request), SAMPLING | FORMS, prefix="parameters.")
    form = form_in(kept, "parameters.")
    options = options_among(kept)
    for key, value in kept.items():
        # The last answer of a stream has no text anyway.
        if key not in options and key != "triton_enable_empty_final_response":
            fields[key] = sampling_value(key, value, f"parameters.{key[:100]}")
    return fields, options, form


def plain_parameters(request: pb.ModelInferRequest) -> dict[str, Any]:
    """The values of the parameters map. Raises InvalidRequestError for one without."""
    return {key: plain(parameter, f"parameters.{key[:100]}") for key, parameter in request.parameters.items()}


def options_among(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the parameters that are options of a request. Raises InvalidRequestError."""
    options = {key: _option(key, given[key], f"parameters.{key}") for key in _OPTIONS if key in given}
    return options | ({"timeout": _seconds(given["timeout"], "parameters.timeout")} if "timeout" in given else {})


def _option(key: str, value: Any, name: str) -> Any:
    kinds: dict[str, tuple[type, ...]] = {"queue_timeout": (int, float), "max_total_tokens": (int,)}
    if isinstance(value, bool) or not isinstance(value, kinds.get(key, (str,))):
        raise InvalidRequestError(f"{name} cannot be {value!r}"[:200], param=name)
    return value


def _seconds(value: Any, name: str) -> float:
    """Triton counts a timeout in microseconds."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidRequestError(f"{name} must be a number of microseconds above 0", param=name)
    return value / 1e6
