"""sentence-transformers as a process of its own: reads one JSON request a line, answers one JSON line.

    {"texts": ["...", ...]} -> {"seconds": 3.21, "first": [0.1, ...], "memory_bytes": 900000000}

Started by `embeddings.py` with an interpreter that has sentence-transformers; imports nothing of jaxserve.
"""

from __future__ import annotations

import json
import resource
import sys
import time


def main() -> None:
    """Load the model of directory argv[1] with argv[2] threads, then embed what is asked; texts of a batch: argv[3]."""
    import sentence_transformers  # noqa: PLC0415  (only this process has it)
    import torch  # noqa: PLC0415

    torch.set_num_threads(int(sys.argv[2]))
    model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
    versions = {"torch": torch.__version__, "sentence-transformers": sentence_transformers.__version__}
    print(json.dumps({"ready": True, "versions": versions}), flush=True)
    for line in sys.stdin:
        texts = json.loads(line)["texts"]
        start = time.perf_counter()
        vectors = model.encode(texts, batch_size=int(sys.argv[3]), show_progress_bar=False)
        seconds = time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "first": vectors[0].tolist(), "memory_bytes": memory}), flush=True)


if __name__ == "__main__":
    main()
