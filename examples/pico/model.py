"""A functional Llama forward pass: a flat dict of parameters under their Hugging Face names, shapes [out, in]."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint

Params = dict[str, Array]
FLOAT32 = jnp.dtype("float32")


@dataclass(frozen=True)
class Config:
    """The shape of the model, in the words of a Hugging Face ``config.json``."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 512


def init_params(config: Config, key: Array) -> Params:
    """Normal(0.02) matrices, with the two that write to the residual stream scaled down by depth; norms at one."""
    h, f, d = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, h)}
    shapes["model.norm.weight"] = (h,)
    attention_shapes = {"q": (q, h), "k": (kv, h), "v": (kv, h), "o": (h, q)}
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm.weight": (h,), p + "post_attention_layernorm.weight": (h,)}
        shapes |= {p + f"self_attn.{n}_proj.weight": s for n, s in attention_shapes.items()}
        shapes |= {p + f"mlp.{n}_proj.weight": s for n, s in (("gate", (f, h)), ("up", (f, h)), ("down", (h, f)))}
    params: Params = {}
    for k, (name, shape) in zip(jax.random.split(key, len(shapes)), shapes.items(), strict=True):
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        scale = 0.02 / (2 * config.num_hidden_layers) ** 0.5 if residual else 0.02
        params[name] = jnp.ones(shape) if len(shape) == 1 else scale * jax.random.normal(k, shape)
    return params


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear(x: Array, weight: Array, dtype: jnp.dtype) -> Array:
    """``x @ weight.T`` with operands in ``dtype`` and sums in float32, in the backward pass too."""
    return jnp.einsum("...i,oi->...o", x.astype(dtype), weight.astype(dtype), preferred_element_type=jnp.float32)


def _linear_forward(x: Array, weight: Array, dtype: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    return linear(x, weight, dtype), (x.astype(dtype), weight.astype(dtype))


def _linear_backward(dtype: jnp.dtype, saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = saved
    grad = grad.astype(dtype)
    dx = jnp.einsum("...o,oi->...i", grad, weight, preferred_element_type=jnp.float32)
    rows, columns = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    # Really transposed, as the CPU's fast bfloat16 product wants the summed axis to be the last of its left operand.
    turned = with_layout_constraint(rows.T, Layout((0, 1)))
    return dx, jnp.einsum("on,ni->oi", turned, columns, preferred_element_type=jnp.float32)


linear.defvjp(_linear_forward, _linear_backward)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Root-mean-square normalisation over the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope(x: Array, theta: float) -> Array:
    """Rotate-half rotary embedding of ``x`` [batch, heads, time, head_dim] at positions 0, 1, ..."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[2])[:, None] * theta ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(params: Params, prefix: str, x: Array, mask: Array, config: Config, dtype: jnp.dtype) -> Array:
    """Grouped-query attention; ``mask`` is [batch or 1, time, time], true where a key may be seen."""
    batch, time, _ = x.shape
    d, kv = config.head_dim, config.num_key_value_heads
    group = config.num_attention_heads // kv

    def heads(name: str, count: int) -> Array:
        y = linear(x, params[f"{prefix}{name}_proj.weight"], dtype)
        return y.reshape(batch, time, count, d).transpose(0, 2, 1, 3)

    q = rope(heads("q", kv * group), config.rope_theta).reshape(batch, kv, group, time, d)
    k, v = rope(heads("k", kv), config.rope_theta), heads("v", kv)
    scores = jnp.einsum("bkgtd,bksd->bkgts", q, k) * d**-0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e9), axis=-1)
    out = jnp.einsum("bkgts,bksd->bkgtd", weights, v)
    out = out.reshape(batch, kv * group, time, d).transpose(0, 2, 1, 3).reshape(batch, time, kv * group * d)
    return linear(out, params[f"{prefix}o_proj.weight"], dtype)


def forward(
    params: Params,
    ids: Array,
    config: Config,
    segments: Array | None = None,
    dtype: jnp.dtype = FLOAT32,
) -> Array:
    """Logits [batch, time, vocab] of ids [batch, time]; tokens of different ``segments`` do not see each other."""
    time = ids.shape[1]
    mask = jnp.tril(jnp.ones((1, time, time), bool))
    if segments is not None:
        mask &= segments[:, :, None] == segments[:, None, :]
    x = params["model.embed_tokens.weight"][ids]
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}."
        y = rms_norm(x, params[p + "input_layernorm.weight"], config.rms_norm_eps)
        x = x + attention(params, p + "self_attn.", y, mask, config, dtype)
        y = rms_norm(x, params[p + "post_attention_layernorm.weight"], config.rms_norm_eps)
        gate = linear(y, params[p + "mlp.gate_proj.weight"], dtype)
        up = linear(y, params[p + "mlp.up_proj.weight"], dtype)
        x = x + linear(jax.nn.silu(gate) * up, params[p + "mlp.down_proj.weight"], dtype)
    x = rms_norm(x, params["model.norm.weight"], config.rms_norm_eps)
    return linear(x, params["model.embed_tokens.weight"], dtype)
