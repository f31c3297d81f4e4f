"""Makes checkpoints that pool and what their own libraries compute from them: python -m tests.golden.make_pooled [NAME ...]

Needs the `parity` extra and sentence-transformers (6.2). Each case becomes pooled/NAME/: a whole checkpoint as the library
saves it, and pooled.json with texts and what they become.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tests.golden.cases import BASE
from tests.golden.make import randomize, write_tokenizer

POOLED = Path(__file__).parent / "pooled"
TEXTS = [
    "a",
    "the rain in the north",
    "tea is on the stone table, near the old train station; there is rain.",
    "seven hundred and twenty five horses ran to the shore " * 3,
]
PAIRS = [(TEXTS[1], TEXTS[2]), (TEXTS[2], TEXTS[1]), (TEXTS[0], TEXTS[3]), (TEXTS[3], TEXTS[0])]
PROMPTS = {"query": "Instruct: find the answer\nQuery: ", "document": ""}
CLS, SEP = "#", "@"  # of encoders
EOS, NO, YES = "!", "to", "te"  # each one token of the tokenizer that write_tokenizer writes


def make_tokenizer(directory: Path, *, ends: bool) -> None:
    """With an end of sequence behind every text, as embedding models are trained."""
    write_tokenizer(directory, BASE["vocab_size"])
    path = directory / "tokenizer.json"
    if ends:
        tokenizer = Tokenizer.from_file(str(path))
        special = [(EOS, tokenizer.token_to_id(EOS))]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {EOS}", pair=f"$A {EOS} $B:1 {EOS}:1", special_tokens=special
        )
        tokenizer.save(str(path), pretty=False)
    PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token=EOS).save_pretrained(directory)


BOTH_WAYS = {  # as EmbeddingGemma
    "head_dim": 16,
    "num_hidden_layers": 3,
    "sliding_window": 10,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "use_bidirectional_attention": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}


DENSE = ((32, 48, False, torch.nn.Identity()), (48, 24, True, torch.nn.Tanh()))


def base_model(directory: Path, kind: str, seed: int, **more: Any) -> None:
    """A model without a head, and its tokenizer."""
    config = AutoConfig.for_model(kind, **{**BASE, "head_dim": 8, **more})
    model = AutoModel.from_config(config, dtype=torch.float32)
    randomize(model, seed)
    model.save_pretrained(directory)
    make_tokenizer(directory, ends=True)


def encoder_tokenizer(directory: Path, kind: str) -> None:
    """Something before every text, something behind it and between two, which have types in BERT."""
    write_tokenizer(directory, BASE["vocab_size"])
    path = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    special = [(token, tokenizer.token_to_id(token)) for token in (CLS, SEP)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", pair=f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=special
    )
    tokenizer.save(str(path), pretty=False)
    named = {"cls_token": CLS, "sep_token": SEP, "pad_token": CLS}
    names = ["input_ids", *(["token_type_ids"] if kind == "bert" else []), "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_file=str(path), model_input_names=names, **named).save_pretrained(directory)


def encoder_config(kind: str, **more: Any) -> Any:
    small = {name: BASE[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")}
    return AutoConfig.for_model(kind, **{**small, "num_hidden_layers": 3, "pad_token_id": 1, **more})


def embedding_encoder(kind: str, seed: int, pooling: str, **more: Any) -> Callable[[Path], Any]:
    def make(directory: Path) -> Any:
        source = directory.with_name(directory.name + "-source")
        model = AutoModel.from_config(encoder_config(kind, **more), dtype=torch.float32)
        randomize(model, seed)
        model.save_pretrained(source)
        encoder_tokenizer(source, kind)
        modules = [Transformer(str(source), max_seq_length=250), Pooling(BASE["hidden_size"], pooling_mode=pooling), Normalize()]
        SentenceTransformer(modules=modules, device="cpu").save(str(directory), create_model_card=False)
        shutil.rmtree(source)
        model = SentenceTransformer(str(directory), device="cpu")
        return {"embeddings": {"plain": model.encode(TEXTS, batch_size=1).tolist()}}

    return make


def cross_encoder(kind: str, seed: int, **more: Any) -> Callable[[Path], Any]:
    def make(directory: Path) -> Any:
        model = AutoModelForSequenceClassification.from_config(encoder_config(kind, num_labels=1, **more), dtype=torch.float32)
        randomize(model, seed)
        model.save_pretrained(directory)
        encoder_tokenizer(directory, kind)
        encoder = CrossEncoder(str(directory), device="cpu")
        return {"scores": encoder.predict(PAIRS, batch_size=1, activation_fn=torch.nn.Sigmoid()).tolist()}

    return make


def embedder(
    kind: str,
    seed: int,
    pooling: str,
    *,
    normalizes: bool,
    prompts: Mapping[str, str],
    dense: Sequence[tuple[int, int, bool, torch.nn.Module]] = (),
    **more: Any,
) -> Callable[[Path], Any]:
    def make(directory: Path) -> Any:
        source = directory.with_name(directory.name + "-source")
        base_model(source, kind, seed, **more)
        transformer = Transformer(str(source), max_seq_length=512)
        size = BASE["hidden_size"]
        torch.manual_seed(seed)
        layers = [Dense(inputs, outputs, bias=bias, activation_function=function) for inputs, outputs, bias, function in dense]
        end = [Normalize()] if normalizes else []
        modules = [transformer, Pooling(size, pooling_mode=pooling), *layers, *end]
        model = SentenceTransformer(modules=modules, prompts=dict(prompts), device="cpu")
        model.save(str(directory), create_model_card=False)
        shutil.rmtree(source)
        model = SentenceTransformer(str(directory), device="cpu")
        made = {"plain": model.encode(TEXTS, batch_size=1).tolist()}
        for name in prompts:
            made[name] = model.encode(TEXTS, batch_size=1, prompt_name=name).tolist()
        return {"embeddings": made}

    return make


def headed(kind: str, seed: int, labels: int) -> Callable[[Path], Any]:
    """A classifier of several labels, or a cross-encoder of one."""

    def make(directory: Path) -> Any:
        config = AutoConfig.for_model(kind, **{**BASE, "head_dim": 8, "num_labels": labels})
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        randomize(model, seed)
        model.save_pretrained(directory)
        make_tokenizer(directory, ends=labels == 1)
        if labels == 1:
            encoder = CrossEncoder(str(directory), device="cpu")
            return {"scores": encoder.predict(PAIRS, batch_size=1, activation_fn=torch.nn.Sigmoid()).tolist()}
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        with torch.no_grad():
            logits = [model.eval()(torch.tensor([tokenizer.encode(text).ids])).logits[0] for text in TEXTS]
        return {"logits": [one.tolist() for one in logits], "probs": [one.softmax(-1).tolist() for one in logits]}

    return make


def reranker(directory: Path) -> Any:
    """A generator that says yes or no, as Qwen3-Reranker does."""
    config = AutoConfig.for_model("qwen3", **{**BASE, "head_dim": 8})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model, 35)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    make_tokenizer(directory, ends=False)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    words = [tokenizer.token_to_id(word) for word in (NO, YES)]
    scores = []
    with torch.no_grad():
        for pair in PAIRS:
            logits = model.eval()(torch.tensor([tokenizer.encode(*pair).ids])).logits[0, -1, words]
            scores.append(float(logits.log_softmax(-1).exp()[1]))
    return {"scores": scores, "words": [NO, YES]}


CASES: dict[str, Callable[[Path], Any]] = {
    "qwen3-last": embedder("qwen3", 31, "lasttoken", normalizes=True, prompts=PROMPTS),
    "mistral-last": embedder("mistral", 32, "lasttoken", normalizes=True, prompts={}),
    "llama-mean": embedder("llama", 33, "mean", normalizes=False, prompts={}),
    "gemma3-both-ways": embedder("gemma3_text", 37, "mean", normalizes=True, prompts=PROMPTS, dense=DENSE, **BOTH_WAYS),
    "bert-mean": embedding_encoder("bert", 38, "mean"),
    "xlm-roberta-cls": embedding_encoder("xlm-roberta", 39, "cls", type_vocab_size=1, max_position_embeddings=300),
    "modernbert-cls": embedding_encoder("modernbert", 40, "cls", local_attention=12),
    "bert-cross": cross_encoder("bert", 41),
    "xlm-roberta-cross": cross_encoder("xlm-roberta", 42, type_vocab_size=1, max_position_embeddings=300),
    "modernbert-cross": cross_encoder("modernbert", 43, local_attention=12, classifier_pooling="mean"),
    "qwen2-cross": headed("qwen2", 34, 1),
    "llama-classes": headed("llama", 36, 3),
    "qwen3-reranker": reranker,
}


def main(names: list[str]) -> None:
    for name in names or list(CASES):
        directory = POOLED / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        made = CASES[name](directory)
        for file in directory.glob("*.safetensors"):
            file.chmod(0o644)
        (directory / "pooled.json").write_text(json.dumps({"texts": TEXTS, "pairs": PAIRS, **made}) + "\n")
        print(name, sorted(made))


if __name__ == "__main__":
    main(sys.argv[1:])
