"""Every setting of jaxserve as frozen dataclasses; flags are generated from them and "auto" is resolved in one place."""
