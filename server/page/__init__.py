"""The pages that a browser gets at / and /engine: files of this package, nothing of them from elsewhere."""
