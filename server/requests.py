"""What every surface turns a request into: a job for the engine."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxserve.engine.client import EngineClient, RequestParams
from jaxserve.errors import InvalidRequestError, JaxserveError, ModelNotFoundError
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import Prompt, RequestOptions, ServiceClass
from server.adapters import AdapterClient
from server.context import RequestContext
from server.models import adapter_base, clients_of

Item = TypeVar("Item")

MAX_PROMPTS = 1024  # of one request: each is a request to the engine, and all begin at once

TextOrIds = str | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestJob:
    """One client request: prompts that share parameters.

    Attributes:
        request_id: the engine's name for the request; with several prompts, the prefix of their names.
        names: for errors, what the client calls the parameters that it does not call as the engine does.
        delivers_output: whether the client gets the tokens that are generated, and so pays for them.
        tells_aborted: whether a sequence that was aborted is told of with what it has, not as an error.
    """

    request_id: str
    prompts: tuple[Prompt, ...]
    params: RequestParams
    options: RequestOptions
    names: Mapping[str, str]
    delivers_output: bool = True
    tells_aborted: bool = False


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def named_id(prefix: str, given: str | None) -> str:
    """The reply's id: the client's own name of the request, or one that nobody has."""
    return prefix + (uuid.uuid4().hex if given is None else given)


def engine_prompt(prompt: TextOrIds) -> Prompt:
    return prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}


def sampling_params(
    client: EngineClient,
    fields: Mapping[str, Any],
    names: Mapping[str, str],
    *,
    prompts: int = 1,
    defaults: Mapping[str, Any] | None = None,
) -> SamplingParams:
    """Build the parameters; None means the default, or else SamplingParams': max_tokens is what the engine leaves.

    Args:
        defaults: the model's if None.

    Raises InvalidRequestError in the client's words, also where they ask for too much with so many prompts.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    left_out = client.model.sampling.given() if defaults is None else defaults
    try:
        params = SamplingParams(**{"max_tokens": None, **left_out, **given})
        client.bounds.check_count(prompts, params)
    except InvalidRequestError as error:
        raise in_words_of_client(error, names) from error
    return params


def listed(values: Collection[Item], most: int, param: str) -> tuple[Item, ...]:
    """The values of a repeated field of a message. Raises InvalidRequestError for more than `most` before it takes any."""
    if len(values) > most:
        raise InvalidRequestError(f"{param} must be at most {most} values, got {len(values)}", param=param)
    return tuple(values)


def request_options(tenants: Sequence[str], fields: Mapping[str, Any], *, tenant_name: str) -> RequestOptions:
    """Build the options; None means the default. Limits are the engine's to check.

    Args:
        tenants: every value of the header, called `tenant_name`, that names the tenant; none for nobody's.

    Raises InvalidRequestError.
    """
    if len(tenants) > 1:  # a gateway that adds its own to the client's: neither can be trusted
        raise InvalidRequestError(f"{tenant_name} must be given once, got {len(tenants)}", param=tenant_name)
    given = {name: value for name, value in fields.items() if value is not None}
    if given.get("cache_salt") == "":
        raise InvalidRequestError("cache_salt must not be empty: leave it out to have none", param="cache_salt")
    if given.get("adapter") == "":
        raise InvalidRequestError("lora_adapter must not be empty: leave it out for the model as it is", param="lora_adapter")
    if "service_class" in given:
        given["service_class"] = _service_class(given["service_class"])
    return RequestOptions(tenant="".join(tenants), **given)


def _service_class(name: str) -> ServiceClass:
    if name not in list(ServiceClass):
        known = ", ".join(ServiceClass)
        raise InvalidRequestError(f"service_class must be one of {known}, got {name!r}", param="service_class")
    return ServiceClass(name)


def in_words_of_client(error: JaxserveError, names: Mapping[str, str]) -> JaxserveError:
    """The same error, naming the parameter as the client does."""
    if error.param is None or error.param not in names:
        return error
    param = names[error.param]
    message = error.message
    if message.startswith(error.param):
        message = param + message.removeprefix(error.param)
    return type(error)(message, param=param, retry_after=error.retry_after)


def admit(client: EngineClient, model: str | None, context: RequestContext) -> EngineClient:
    """The client of a model; see `served`.

    Raises at once for what need not be looked at: DrainingError, EngineDeadError, ModelNotFoundError.
    """
    client.check_health()
    chosen = served(client, model, context)
    chosen.check_health()
    return chosen


def served(client: EngineClient, name: str | None, context: RequestContext) -> EngineClient:
    """The client of the model `name`, of those behind `client`; none means the first that the caller may use.

    A name that no model has may be an adapter's, where one takes them: that is known when the request comes to the engine.

    Raises ModelNotFoundError unless it is served here and the caller may use it.
    """
    clients = clients_of(client)
    chosen = next((one for one in clients if (name in one.model.names if name else may_use(one, context))), None)
    if chosen is None and name and (base := adapter_base(client)) is not None:
        if context.call is not None and not context.call.may_use((name, *base.model.names)):
            context.call.check_model((name,))
        return AdapterClient(base, name)
    if context.call is not None:
        context.call.check_model(chosen.model.names if chosen is not None else (name or client.model.name,))
    if chosen is None:
        there = ", ".join(repr(one.model.name) for one in clients)
        raise ModelNotFoundError(f"the model {name!r} is not served here; this server has {there}", param="model")
    return chosen


def may_use(client: EngineClient, context: RequestContext) -> bool:
    """Whether the caller may use the model of a client."""
    return context.call is None or context.call.may_use(client.model.names)


def check_not_empty(prompt: str | Sequence[object], param: str) -> None:
    """Raise InvalidRequestError for a prompt without content, which no position could be sampled from."""
    if not prompt:
        raise InvalidRequestError(f"{param} must not be empty", param=param)


def template_arguments(
    extra: Mapping[str, Any], name: str, *, add_generation_prompt: bool | None, continue_final_message: bool
) -> dict[str, Any]:
    """What EngineClient.render_chat takes besides the messages; `name` is what the client calls `extra`.

    The assistant's turn is opened by default, unless the last message is to be continued. Raises InvalidRequestError.
    """
    opens = not continue_final_message if add_generation_prompt is None else add_generation_prompt
    own = {"add_generation_prompt": opens, "continue_final_message": continue_final_message}
    taken = extra.keys() & {"messages", *own}
    if taken:
        raise InvalidRequestError(f"{name} must not contain {min(taken)}, which has a field of its own", param=name)
    if opens and continue_final_message:
        raise InvalidRequestError(
            "add_generation_prompt cannot be true together with continue_final_message", param="add_generation_prompt"
        )
    return {**extra, **own}
