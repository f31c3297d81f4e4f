"""What people use in a terminal: `repl`, a conversation with a server or a local model, and `screen`, a server's load."""
