"""The commands that work against any CRI server, with the output they have for a local store."""
