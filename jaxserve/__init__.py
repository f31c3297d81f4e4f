"""jaxserve: a JAX/XLA-native serving engine for large language models."""

from importlib.metadata import version

from jaxserve.errors import JaxserveError
from jaxserve.llm import LLM
from jaxserve.outputs import CompletionOutput, RequestOutput
from jaxserve.sampling.params import SamplingParams

__version__ = version("jaxserve")

__all__ = ["LLM", "CompletionOutput", "JaxserveError", "RequestOutput", "SamplingParams", "__version__"]
