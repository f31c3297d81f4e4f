import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.models.positions import RopeConfig
from jaxserve.models.rope import inverse_frequencies, rotation
from pallas_kernels.rotate_and_write import rotate

D = 16
DEFAULT = RopeConfig()
LLAMA3 = RopeConfig(kind="llama3", factor=8.0, original_max_position_embeddings=64)
YARN = RopeConfig(kind="yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=1.1)


def test_default_frequencies():
    expected = 10000.0 ** -(np.arange(D // 2) * 2 / D)
    np.testing.assert_allclose(inverse_frequencies(DEFAULT, D), expected, rtol=1e-6)
    dynamic = RopeConfig(kind="dynamic", factor=2.0)
    np.testing.assert_array_equal(inverse_frequencies(dynamic, D), inverse_frequencies(DEFAULT, D))


def test_linear_stretches_positions():
    linear = RopeConfig(kind="linear", factor=4.0)
    far, near = jnp.array([8, 40]), jnp.array([2, 10])
    np.testing.assert_allclose(rotation(linear, D, far).cos, rotation(DEFAULT, D, near).cos, atol=1e-6)


def test_llama3_keeps_short_waves_and_stretches_long_ones():
    plain, scaled = inverse_frequencies(DEFAULT, D), inverse_frequencies(LLAMA3, D)
    wavelength = 2 * math.pi / plain
    np.testing.assert_array_equal(scaled[wavelength < 16], plain[wavelength < 16])
    np.testing.assert_allclose(scaled[wavelength > 64], plain[wavelength > 64] / 8, rtol=1e-6)
    middle = (wavelength > 16) & (wavelength < 64)
    assert middle.any()
    assert ((scaled < plain) & (scaled > plain / 8))[middle].all()


def test_proportional_rotates_the_first_of_all_pairs():
    part = inverse_frequencies(RopeConfig(kind="proportional", rotated_dims=6, factor=2.0), D)
    np.testing.assert_allclose(part[:3], inverse_frequencies(DEFAULT, D)[:3] / 2, rtol=1e-6)
    np.testing.assert_array_equal(part[3:], np.zeros(D // 2 - 3))
    whole = inverse_frequencies(RopeConfig(kind="proportional"), D)
    np.testing.assert_array_equal(whole, inverse_frequencies(DEFAULT, D))


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_ramps_from_kept_to_stretched(truncate):
    plain = inverse_frequencies(DEFAULT, D)
    scaled = inverse_frequencies(dataclasses.replace(YARN, truncate=truncate), D)
    ratio = plain / scaled
    assert ratio[0] == pytest.approx(1)
    assert ratio[-1] == pytest.approx(4)
    assert (np.diff(ratio) > -1e-6).all()


def test_yarn_with_an_empty_band_is_a_step():
    step = dataclasses.replace(YARN, original_max_position_embeddings=2)
    ratio = inverse_frequencies(DEFAULT, D) / inverse_frequencies(step, D)
    np.testing.assert_allclose(ratio, [1] + [4] * (D // 2 - 1), rtol=1e-6)


def test_attention_factor_scales_the_rotation():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, D)), jnp.float32)
    rotated = rotate(x, rotation(YARN, D, jnp.array([0, 5, 63])))
    norms = jnp.linalg.norm(rotated, axis=-1) / jnp.linalg.norm(x, axis=-1)
    np.testing.assert_allclose(norms, 1.1, rtol=1e-5)


def test_scores_depend_on_distance_only():
    rng = np.random.default_rng(1)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, D)), jnp.float32) for _ in range(2))

    def score(at, key_at):
        return jnp.sum(rotate(q, rotation(DEFAULT, D, jnp.array([at]))) * rotate(k, rotation(DEFAULT, D, jnp.array([key_at]))))

    np.testing.assert_allclose(score(7, 3), score(104, 100), rtol=1e-4)
    assert abs(score(7, 3) - score(7, 4)) > 1e-3


def test_rotation_keeps_the_dtype():
    x = jnp.ones((1, 1, D), jnp.bfloat16)
    assert rotate(x, rotation(DEFAULT, D, jnp.array([3]))).dtype == jnp.bfloat16


def test_only_the_first_dimensions_rotate():
    part = RopeConfig(rotated_dims=6)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, D)), jnp.float32)
    rotated = rotate(x, rotation(part, D, jnp.array([1, 9])))
    np.testing.assert_array_equal(rotated[..., 6:], x[..., 6:])
    np.testing.assert_allclose(rotated[..., :6], rotate(x[..., :6], rotation(DEFAULT, 6, jnp.array([1, 9]))), rtol=1e-6)


def test_longrope_divides_by_the_factors_in_use():
    short, long = tuple(1.0 + i for i in range(D // 2)), tuple(2.0 + i for i in range(D // 2))
    rope = RopeConfig(kind="longrope", short_factors=short, long_factors=long, original_max_position_embeddings=64)
    plain = inverse_frequencies(DEFAULT, D)
    np.testing.assert_allclose(plain / inverse_frequencies(rope.serving(64), D), short, rtol=1e-6)
    np.testing.assert_allclose(plain / inverse_frequencies(rope.serving(65), D), long, rtol=1e-6)


def test_layers_share_cosines_on_cpus():
    def layers(x, positions):
        by = rotation(DEFAULT, D, positions)
        for _ in range(3):
            x = jnp.cumsum(rotate(x, by), axis=0)  # what XLA cannot fuse, as a layer is
        return x

    x, positions = jnp.ones((4, 2, D)), jnp.arange(4)
    program = jax.jit(layers).lower(x, positions).compile().as_text()
    assert program is not None
    assert program.count(" cosine(") == program.count(" sine(") == 1


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(theta=500000.0),
        RopeConfig(kind="yarn", theta=1e6, factor=32.0, original_max_position_embeddings=8192, attention_factor=1.2),
        RopeConfig(kind="longrope", short_factors=(1.0,) * 32, long_factors=(1.0, 4.0) * 16, extended=True, attention_factor=1.1),
    ],
    ids=lambda rope: rope.kind,
)
def test_a_million_positions_are_as_exact_as_the_first(rope):
    """Angles are products in float32, as in the checkpoints' own code; cosines and sines of them are those of float64."""
    positions = np.concatenate([np.arange(0, 2**20, 997), [2**17 - 1, 2**18 - 1, 2**20 - 1]]).astype(np.int32)
    rotated = jax.jit(partial(rotation, rope, 64))(positions)
    angles = (positions.astype(np.float32)[:, None] * inverse_frequencies(rope, 64)[None]).astype(np.float64)
    for found, function in ((rotated.cos, np.cos), (rotated.sin, np.sin)):
        np.testing.assert_allclose(found, rope.attention_factor * function(angles), rtol=0, atol=3e-7)
