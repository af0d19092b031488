"""Credentials: where they are kept, in which order they are looked for, and how they are stored."""
