"""OpenAI's newer surface: POST /v1/responses."""
