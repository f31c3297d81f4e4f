"""Settings of every test: eight virtual CPU devices, and jax refuses implicit promotion of dtypes and ranks."""

import os

# jax reads these when it is first imported, so they are set before anything else.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
