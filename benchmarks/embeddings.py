"""Texts a second of an embedding model beside sentence-transformers, in one run, in turns.

    python -m benchmarks.embeddings --peer-python PATH [--model minilm] [--texts 10000] [--tokens 32 256] [--rounds 3]

PATH is an interpreter with sentence-transformers. `minilm` is a BERT of 33 million numbers, all-MiniLM-L12's shape, `llama150m`
the decoder of the other benchmarks, of which the last token's state is the vector; both with random weights in float32, each word
of a text a token of the vocabulary. Both sides are given all texts of a round at once, new ones in every round.
`against_sentence_transformers` is the median of the rounds' quotients of texts a second; `memory_bytes` what each process had at
most until then, the texts included. Writes benchmarks/results/embeddings.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from benchmarks import llama150m, machine
from benchmarks.peer import Peer
from jaxserve import LLM
from jaxserve.models.registry import decoder_config, weight_rules

RESULTS = Path(__file__).parent / "results" / "embeddings.json"
VOCABULARY, LONGEST, CLS, SEP = 30522, 512, "[CLS]", "[SEP]"
MINILM: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": VOCABULARY,
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": LONGEST,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "dtype": "float32",
}
# Of a model: its config and how its vectors are pooled.
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "minilm": (MINILM, "pooling_mode_mean_tokens"),
    "llama150m": (
        {**llama150m.CONFIG, "architectures": ["LlamaModel"], "vocab_size": VOCABULARY, "dtype": "float32"},
        "pooling_mode_lasttoken",
    ),
}
MODULES = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")]
BUDGET, ROWS, PEER_BATCH = 2048, 64, 32  # tokens and texts of a step; texts of sentence-transformers' batches, its default


def write_model(directory: Path, config: dict[str, Any], pooling_mode: str) -> Path:
    """A checkpoint as sentence-transformers saves one."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    sources = [source for rule in weight_rules(decoder_config(config)) for source in rule.sources]
    norms = [source.name.lower().endswith("norm.weight") for source in sources]
    save_file(
        {
            source.name.removeprefix("model."): (rng.standard_normal(source.stored_shape) * 0.05 + is_norm).astype(np.float32)
            for source, is_norm in zip(sources, norms, strict=True)
        },
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    words = {"[PAD]": 0, CLS: 1, SEP: 2, "[UNK]": 3, **{f"w{number}": number for number in range(4, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing((SEP, words[SEP]), (CLS, words[CLS]))
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"cls_token": CLS, "sep_token": SEP, "pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": LONGEST}
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}))
    listed = [
        {"idx": int(name), "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for name, path, kind in MODULES
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    for _, path, _ in MODULES[1:]:
        (directory / path).mkdir()
    pooling = {"word_embedding_dimension": config["hidden_size"], "pooling_mode_mean_tokens": False, pooling_mode: True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST, "do_lower_case": False}))
    return directory


def draw(rng: np.random.Generator, count: int, tokens: int) -> list[str]:
    """Texts of so many tokens, those at both ends included."""
    return [" ".join(f"w{word}" for word in words) for words in rng.integers(4, VOCABULARY, (count, tokens - 2)).tolist()]


def measure(llm: LLM, peer: Peer, given: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """Rounds of one turn each, in the other order every second time."""
    rng = np.random.default_rng(tokens)
    count = given.texts if tokens <= 64 else given.texts // 10
    rounds: list[dict[str, float]] = []
    for number in range(given.rounds + 1):  # the first one warms up
        texts = draw(rng, count if number else count // 10, tokens)
        found: dict[str, float] = {}
        first: dict[str, Any] = {}
        memory: dict[str, int] = {}
        for name in ["jaxserve", "sentence-transformers"][:: 1 if number % 2 else -1]:
            if name == "jaxserve":
                begin = time.perf_counter()
                outputs = llm.embed(texts, use_tqdm=False)
                found[name] = len(texts) / (time.perf_counter() - begin)
                first[name] = outputs[0].outputs.embedding  # type: ignore[union-attr]
                memory[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            else:
                answer = peer.ask({"texts": texts})
                found[name], first[name] = len(texts) / answer["seconds"], answer["first"]
                memory[name] = answer["memory_bytes"]
        cosine = float(np.dot(first["jaxserve"], first["sentence-transformers"]))
        if cosine < 0.9999:
            raise RuntimeError(f"they do not give the same vectors: cosine {cosine}")
        if number:
            rounds.append(found)
            print(tokens, json.dumps(found), flush=True)
    quotients = [one["jaxserve"] / one["sentence-transformers"] for one in rounds]
    told = {"tokens": tokens, "texts": count, "texts_per_s": rounds, "memory_bytes": memory}
    return {**told, "against_sentence_transformers": machine.median(quotients)}


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="an interpreter that has sentence-transformers")
    parser.add_argument("--model", choices=MODELS, default="minilm")
    parser.add_argument("--texts", type=int, default=10000, help="of a round; a tenth of longer ones")
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 256], help="of a text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of sentence-transformers")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    config, pooling_mode = MODELS[given.model]
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.embeddings"), "model": config}
    with tempfile.TemporaryDirectory() as scratch:
        directory = write_model(Path(scratch) / given.model, config, pooling_mode)
        peer = Peer(given.peer_python, "peer_sentence_transformers.py", str(directory), str(given.threads), str(PEER_BATCH))
        report["versions"] |= peer.hello["versions"]
        llm = LLM(str(directory), max_num_batched_tokens=BUDGET, max_num_seqs=ROWS, dtype="float32")
        report["runs"] = [measure(llm, peer, given, tokens) for tokens in given.tokens]
        peer.close()
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    for run in report["runs"]:
        print(f"{run['tokens']} tokens: {run['against_sentence_transformers']:.2f}x sentence-transformers")


if __name__ == "__main__":
    main()
