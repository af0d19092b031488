"""What the gRPC faces share: the store they serve, the threads it works on, and errors as status codes."""
