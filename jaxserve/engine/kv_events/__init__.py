"""KV events: what an engine's prefix cache holds, published for routers and indexers as vLLM publishes it."""
