"""Who may use the server, how much of it, and what is written down for the bill."""
