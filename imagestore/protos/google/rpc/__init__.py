"""The error as a value that gRPC services send."""
