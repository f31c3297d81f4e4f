"""Decoders in Flax NNX, assembled from parts; one small file a family. Knows nothing of requests or caches.

Start at `registry.decoder_config` (config.json to DecoderConfig), `binding.abstract_params` (the parameter tree) and
`binding.bind` (parameters to a callable decoder inside a jitted function).
"""
