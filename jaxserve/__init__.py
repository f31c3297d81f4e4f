"""jaxserve: a JAX/XLA-native serving engine for large language models.

The names below are loaded when they are first used, so that the scheduler, the cache and the simulator can be imported without
jax.
"""

# First of all: what is imported below must not be found in the current directory.
from jaxserve.import_path import leave_current_directory  # isort: skip

leave_current_directory()

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from jaxserve.own_packages import install  # noqa: E402
from jaxserve.versions import version_of  # noqa: E402

if TYPE_CHECKING:
    from jaxserve.adapters.request import LoRARequest
    from jaxserve.errors import JaxserveError
    from jaxserve.llm import LLM
    from jaxserve.outputs import CompletionOutput, RequestOutput
    from jaxserve.pooling.params import PoolingParams
    from jaxserve.sampling.params import SamplingParams
    from jaxserve.sampling.response import ResponseParams
    from jaxserve.sampling.structured import StructuredOutputsParams
    from jaxserve.types import RequestOptions, ServiceClass

    __version__: str

__all__ = [
    "LLM",
    "CompletionOutput",
    "JaxserveError",
    "LoRARequest",
    "PoolingParams",
    "RequestOptions",
    "RequestOutput",
    "ResponseParams",
    "SamplingParams",
    "ServiceClass",
    "StructuredOutputsParams",
    "__version__",
]

_HOMES = {
    "LLM": "jaxserve.llm",
    "CompletionOutput": "jaxserve.outputs",
    "RequestOutput": "jaxserve.outputs",
    "JaxserveError": "jaxserve.errors",
    "LoRARequest": "jaxserve.adapters.request",
    "PoolingParams": "jaxserve.pooling.params",
    "ResponseParams": "jaxserve.sampling.response",
    "SamplingParams": "jaxserve.sampling.params",
    "StructuredOutputsParams": "jaxserve.sampling.structured",
    "RequestOptions": "jaxserve.types",
    "ServiceClass": "jaxserve.types",
}


install()


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version_of("jaxserve")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
