"""The Docker Engine as an image service: its HTTP API over its unix socket."""
