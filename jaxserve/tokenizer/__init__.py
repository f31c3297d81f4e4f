"""Text to token ids and back: HF tokenizers and SentencePiece behind one protocol, chat templates, incremental decoding."""
