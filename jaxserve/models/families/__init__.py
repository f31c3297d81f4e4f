"""Model families: each file maps config.json to a DecoderConfig and tensor names to places in the parameter tree."""
