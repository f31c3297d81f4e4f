"""Streams that survive their connection: X-Conversation-Id, stream_options.resume and /v1/streams."""
