"""HTTP and gRPC servers in front of any EngineClient."""
