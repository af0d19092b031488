"""Common types that messages use: any, empty, field mask, timestamp."""
