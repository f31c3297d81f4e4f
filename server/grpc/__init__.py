"""The gRPC surface, jaxserve.v1."""
