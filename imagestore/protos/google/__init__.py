"""Types of Google that the interfaces use; protobuf has the same ones in its own pool."""
