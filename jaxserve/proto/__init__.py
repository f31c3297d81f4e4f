"""Protobuf schemas of the gRPC APIs, and the stubs that `make proto` generates from them. Servers and clients import these."""
