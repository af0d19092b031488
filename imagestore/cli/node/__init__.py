"""``imagestore node``: what a node agent asks."""
