"""The loop that plans and runs steps, the clients that feed it, and the way from tokens to text."""
