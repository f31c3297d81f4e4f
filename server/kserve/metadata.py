"""What the protocol tells of the server and its model: names, tensors, state, what has been done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxserve.engine.client import EngineClient
from jaxserve.errors import JaxserveError
from jaxserve.metrics import catalogue
from jaxserve.metrics.catalogue import Metric
from jaxserve.proto import kserve_pb2 as pb
from jaxserve.terminal.metrics_page import Page
from jaxserve.versions import version_of
from server.context import RequestContext
from server.kserve import pooling
from server.kserve.requests import INPUTS, OUTPUTS, REQUIRED, VERSION, check_version
from server.models import clients_of
from server.requests import may_use, served

EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "statistics")
PLATFORM = "jaxserve"
_NANOSECONDS = 1e9
_TYPES = {"BYTES": "TYPE_STRING", "BOOL": "TYPE_BOOL", "FP32": "TYPE_FP32", "UINT32": "TYPE_UINT32"}


class _Tensors(NamedTuple):
    """Of a model, by datatype.

    Attributes:
        size: of an input; -1 for as many elements as the client likes.
        matrices: outputs that have a row for each element.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    size: int
    matrices: tuple[str, ...]

    def shape(self, output: str) -> list[int]:
        """Of an output."""
        return [-1, -1] if output in self.matrices else [-1]


def _tensors(client: EngineClient) -> _Tensors:
    if pooling.only_pools(client):
        return _Tensors(pooling.INPUTS, pooling.outputs_of(client), -1, (pooling.EMBEDDING, pooling.SCORES))
    return _Tensors(INPUTS, OUTPUTS, 1, ())


def server_metadata() -> pb.ServerMetadataResponse:
    return pb.ServerMetadataResponse(name="jaxserve", version=version_of("jaxserve"), extensions=EXTENSIONS)


def model_metadata(client: EngineClient, name: str, model_version: str, context: RequestContext) -> pb.ModelMetadataResponse:
    """The served model's tensors. Raises ModelNotFoundError."""
    client = _checked(client, name, model_version, context)
    reply = pb.ModelMetadataResponse(name=name or client.model.name, versions=[VERSION], platform=PLATFORM)
    tensors = _tensors(client)
    for tensor, datatype in tensors.inputs.items():
        reply.inputs.add(name=tensor, datatype=datatype, shape=[tensors.size])
    for tensor, datatype in tensors.outputs.items():
        reply.outputs.add(name=tensor, datatype=datatype, shape=tensors.shape(tensor))
    return reply


def model_config(client: EngineClient, name: str, model_version: str, context: RequestContext) -> pb.ModelConfig:
    """The same as Triton's configuration of a model. Raises ModelNotFoundError."""
    client = _checked(client, name, model_version, context)
    config = pb.ModelConfig(name=name or client.model.name, platform=PLATFORM, backend=PLATFORM)
    tensors = _tensors(client)
    for tensor, datatype in tensors.inputs.items():
        optional = tensor not in REQUIRED
        config.input.add(name=tensor, data_type=_TYPES[datatype], dims=[tensors.size], optional=optional)
    for tensor, datatype in tensors.outputs.items():
        config.output.add(name=tensor, data_type=_TYPES[datatype], dims=tensors.shape(tensor))
    config.model_transaction_policy.decoupled = not pooling.only_pools(client)  # a request may have many answers
    return config


def repository_index(
    client: EngineClient, ready: Callable[[], None], context: RequestContext, *, only_ready: bool
) -> pb.RepositoryIndexResponse:
    """Every name of the models, and whether requests are accepted, which `ready` raises a JaxserveError if they are not."""
    reply = pb.RepositoryIndexResponse()
    state, reason = "READY", ""
    try:
        ready()
    except JaxserveError as error:
        state, reason = "UNAVAILABLE", error.message
    for one in clients_of(client):
        if may_use(one, context) and (state == "READY" or not only_ready):
            for name in one.model.names:
                reply.models.add(name=name, version=VERSION, state=state, reason=reason)
    return reply


def model_statistics(
    client: EngineClient, name: str, model_version: str, metrics: bytes, context: RequestContext
) -> pb.ModelStatisticsResponse:
    """What requests took since the start. Raises ModelNotFoundError."""
    client = _checked(client, name, model_version, context)
    page = Page.read(metrics.decode(), 0.0).of_model(client.model.name)
    one = pb.ModelStatistics(name=name or client.model.name, version=VERSION)
    one.inference_count = round(page.value(catalogue.REQUESTS_FINISHED))
    one.execution_count = round(page.sum_and_count(catalogue.STEP_SECONDS)[1])
    stats = one.inference_stats
    stats.success.CopyFrom(_duration(page, catalogue.E2E_LATENCY))
    stats.fail.count = round(
        page.value(catalogue.REQUESTS_ABORTED) + page.value(catalogue.REQUESTS_REJECTED)
    )  # times are not kept
    stats.queue.CopyFrom(_duration(page, catalogue.QUEUE_TIME))
    stats.compute_infer.CopyFrom(_duration(page, catalogue.DECODE_TIME, catalogue.PREFILL_TIME))
    return pb.ModelStatisticsResponse(model_stats=[one])


def _duration(page: Page, metric: Metric, *others: Metric) -> pb.StatisticDuration:
    """How often something was, and how long it took with what belongs to it."""
    seconds, count = page.sum_and_count(metric)
    seconds += sum(page.sum_and_count(other)[0] for other in others)
    return pb.StatisticDuration(count=round(count), ns=round(seconds * _NANOSECONDS))


def _checked(client: EngineClient, name: str, model_version: str, context: RequestContext) -> EngineClient:
    """The client of the model. Raises ModelNotFoundError."""
    chosen = served(client, name, context)
    check_version(model_version)
    return chosen
