"""Chats as every surface has them: what a request says of tools and thinking, and what a response is made of."""
