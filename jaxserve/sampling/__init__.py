"""What a request asks of the sampler, and the sampler itself."""
