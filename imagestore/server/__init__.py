"""The server process: sockets, reload, drain, health, metrics; it composes the gRPC faces."""
