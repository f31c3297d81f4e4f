"""The processes of a server: a supervisor, an engine, and front ends with HTTP and gRPC each."""
