"""Where keys and values live: pages with reference counts and the prefix cache over them. Integers only, never jax."""
