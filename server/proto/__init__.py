"""The gRPC surface: inference.proto and the stubs that `make proto` writes from it."""
