"""OpenAI's files: /v1/files."""
