"""jaxserve beside the engines that people would pick instead, over HTTP, on the same machine and model, in turns."""
