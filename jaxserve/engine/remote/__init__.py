"""An engine in a process of its own: messages in msgpack over ZeroMQ, one batch a step for each front end."""
