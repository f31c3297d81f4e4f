"""A client of httpx that does what a good client of a busy server does; OpenAI's, Anthropic's and other SDKs take it.

    from openai import OpenAI
    from jaxserve.client import http_client

    client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", max_retries=0, http_client=http_client())

What is refused, or did not get through, is sent again: never before the server's Retry-After, with jitter, and out of a budget.
Every POST has an Idempotency-Key, so that what was sent twice runs once. A stream that breaks off goes on: the request is sent
again under its key, the server answers from the start, and bytes that were read already are compared and passed over.

It imports httpx and nothing else of this engine.
"""

from jaxserve.client.budget import RetryBudget
from jaxserve.client.clients import async_http_client, http_client
from jaxserve.client.policy import RetryPolicy
from jaxserve.client.transport import RetryTransport
from jaxserve.client.transport_async import AsyncRetryTransport

__all__ = ["AsyncRetryTransport", "RetryBudget", "RetryPolicy", "RetryTransport", "async_http_client", "http_client"]
