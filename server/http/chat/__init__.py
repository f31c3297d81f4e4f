"""OpenAI's surface for conversations: POST /v1/chat/completions."""
