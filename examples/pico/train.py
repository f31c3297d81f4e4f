"""Train pico: ``python examples/pico/train.py --work build/pico --minutes 63``; run it again to resume."""

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from data import Batch, Corpus, Shares, stdlib_files, words_of
from jax import Array
from model import Config, Params, forward, init_params
from optimizer import make_optimizer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors.flax import load_file
from tasks import Source, draw_task
from tokenizer import Codec, save_tokenizer, train_tokenizer
from tokenizers import Tokenizer

Step = Callable[[Params, Any, Batch, float], tuple[Params, Any, Array]]


def parse_args() -> argparse.Namespace:
    """Command-line flags."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/pico"), help="folder of checkpoints and logs")
    parser.add_argument("--minutes", type=float, default=63, help="training time, counted over all resumed runs")
    parser.add_argument("--steps", type=int, default=0, help="if given, the schedule counts steps and not minutes")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--warmup-steps", type=int, default=60)
    parser.add_argument("--decay-from", type=float, default=0.5, help="share of the run before the rate falls")
    parser.add_argument("--row-lengths", type=int, nargs="+", default=[64, 128, 512], help="lengths of rows, in turn")
    parser.add_argument("--row-from", type=float, nargs="+", default=[0, 0.4, 0.85], help="where in the run they start")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument(
        "--chat-share", type=float, nargs=2, default=[0.7, 0.4], help="share of rows with conversations: first, last"
    )
    parser.add_argument(
        "--shares", type=float, nargs=3, default=[0, 0, 0], help="of conversations: with tools, with thinking, with JSON answers"
    )
    parser.add_argument("--init", type=Path, help="a folder of export.py, with whose weights and tokenizer to begin")
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8, help="of 32 numbers; the other sizes of a layer follow")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="operands of products")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=float, default=180, help="seconds between checkpoints")
    return parser.parse_args()


def begin(args: argparse.Namespace, config: Config) -> tuple[Params, dict[str, Any]]:
    """The parameters and figures that a run begins with; the figures of the model of ``--init`` are kept in its own."""
    params = init_params(config, jax.random.key(args.seed))
    figures: dict[str, Any] = {"step": 0, "tokens": 0, "seconds": 0.0, "loss": None}
    if args.init is not None:
        loaded = load_file(args.init / "model.safetensors")
        params = {name: loaded[name].astype(jnp.float32) for name in params}
        figures["init"] = json.loads((args.init / "training.json").read_text())
        if not (args.work / "tokenizer.json").exists():
            shutil.copy(args.init / "tokenizer.json", args.work)
    return params, figures


def prepare_tokenizer(folder: Path, texts: list[str], vocab_size: int, seed: int, max_length: int) -> Tokenizer:
    """Load the tokenizer of an earlier run, or train it on the library and some tasks."""
    path = folder / "tokenizer.json"
    if not path.exists():
        rng = Random(seed)
        source = Source(words_of(texts, 8000), ["a"])
        tasks = (draw_task(rng, source).prompt for _ in range(20000))
        save_tokenizer(train_tokenizer([*texts, *tasks], vocab_size), folder, max_length)
    tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    return tokenizer


def make_step(config: Config, optimizer: optax.GradientTransformation, dtype: str) -> Step:
    """The compiled update."""

    def loss_of(params: Params, inputs: Array, targets: Array, weights: Array, segments: Array) -> Array:
        logits = forward(params, inputs, config, segments, jnp.dtype(dtype))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        mean: Array = (losses * weights).sum() / weights.sum()
        return mean

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Params, state: Any, rate: Array, *arrays: Array) -> tuple[Params, Any, Array]:
        loss, grads = jax.value_and_grad(loss_of)(params, *arrays)
        updates, state = optimizer.update(grads, state, params)
        params = jax.tree.map(lambda p, u: p + rate * u, params, updates)
        return params, state, loss

    def step(params: Params, state: Any, batch: Batch, rate: float) -> tuple[Params, Any, Array]:
        arrays = (batch.inputs, batch.targets, batch.weights, batch.segments)
        result: tuple[Params, Any, Array] = update(params, state, jnp.float32(rate), *arrays)
        return result

    return step


def learning_rate(args: argparse.Namespace, step: int, done: float) -> float:
    """Warm-up by steps, then constant, then a straight line to (almost) zero at the end of the run."""
    warm = min(1.0, (step + 1) / args.warmup_steps)
    decay = min(1.0, max(0.01, (1 - done) / (1 - args.decay_from)))
    return float(args.lr * warm * decay)


def save(folder: Path, params: Params, state: Any, meta: dict[str, Any]) -> None:
    """Write a checkpoint; an interrupted write leaves the last one whole."""
    leaves = {f"state.{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}
    arrays: dict[str, Any] = {k: np.asarray(v) for k, v in params.items()} | leaves
    np.savez(folder / "new.npz", **arrays, meta=np.array(json.dumps(meta)))
    (folder / "new.npz").replace(folder / "checkpoint.npz")


def restore(folder: Path, params: Params, state: Any, figures: dict[str, Any]) -> tuple[Params, Any, dict[str, Any]]:
    """The last checkpoint's parameters, optimizer state and figures, or those given where there is none."""
    if not (folder / "checkpoint.npz").exists():
        return params, state, figures
    with np.load(folder / "checkpoint.npz") as file:
        params = {k: jnp.asarray(file[k]) for k in params}
        leaves, tree = jax.tree.flatten(state)
        state = jax.tree.unflatten(tree, [jnp.asarray(file[f"state.{i}"]) for i in range(len(leaves))])
        return params, state, json.loads(str(file["meta"]))


def progress_bar() -> Progress:
    """The bar with what one wants to see of a run."""
    percentage, description = TextColumn("{task.percentage:.0f}%"), TextColumn("{task.description}")
    return Progress(BarColumn(), percentage, TimeElapsedColumn(), description)


def train(args: argparse.Namespace) -> None:
    """Train until the time or the steps are spent."""
    args.work.mkdir(parents=True, exist_ok=True)
    config = Config(args.vocab_size, 32 * args.heads, 88 * args.heads, args.layers, args.heads, args.heads // 2)
    params, figures = begin(args, config)
    texts = stdlib_files()
    tokenizer = prepare_tokenizer(args.work, texts, args.vocab_size, args.seed, config.max_position_embeddings)
    corpus = Corpus(Codec(tokenizer), texts, args.seed, Shares(*args.shares))
    optimizer = make_optimizer(args.optimizer, args.weight_decay)
    params, state, meta = restore(args.work, params, optimizer.init(params), figures)
    meta |= {"config": asdict(config), "args": {k: str(v) for k, v in vars(args).items()}}
    update = make_step(config, optimizer, args.dtype)
    print(f"{sum(p.size for p in params.values()):,} parameters, {len(corpus.python):,} tokens of Python", flush=True)
    average, saved, last = meta["loss"], time.monotonic(), time.monotonic()
    with progress_bar() as progress:
        bar = progress.add_task("", total=1.0)
        while True:
            done = meta["step"] / args.steps if args.steps else meta["seconds"] / 60 / args.minutes
            if done >= 1:
                break
            length = [n for n, start in zip(args.row_lengths, args.row_from, strict=True) if done >= start][-1]
            share = (1 - done) * args.chat_share[0] + done * args.chat_share[1]
            batch = corpus.batch(meta["step"], max(1, args.batch_tokens // length), length, share)
            rate = learning_rate(args, meta["step"], done)
            params, state, loss = update(params, state, batch, rate)
            average = float(loss) if average is None else 0.98 * average + 0.02 * float(loss)
            now = time.monotonic()
            meta |= {"step": meta["step"] + 1, "tokens": meta["tokens"] + batch.inputs.size, "loss": average}
            meta["seconds"], last = meta["seconds"] + now - last, now
            text = f"step {meta['step']} loss {average:.4f} rate {rate:.1e} {batch.inputs.size / 1e6:.3f}M"
            progress.update(bar, completed=done, description=text)
            if meta["step"] % 20 == 0:
                with (args.work / "log.txt").open("a") as log:
                    log.write(f"{text} tokens {meta['tokens']} seconds {meta['seconds']:.0f}\n")
            if now - saved > args.save_every:
                save(args.work, params, state, meta)
                saved = now
    save(args.work, params, state, meta)


if __name__ == "__main__":
    train(parse_args())
