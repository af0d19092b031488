"""The server process: sockets, reload, drain, health, metrics; it puts the gRPC services together."""
