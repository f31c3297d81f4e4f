"""OpenAI's batches: /v1/batches."""
