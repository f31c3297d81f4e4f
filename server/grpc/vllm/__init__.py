"""vllm.grpc.engine: the service through which the gateway smg drives vLLM, answered by this engine."""
