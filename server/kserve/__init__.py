"""The Open Inference Protocol (KServe v2) with the tensors of Triton's vLLM backend, whatever carries it."""
