"""A look at a whole store: its handlers, images, matrices, use of the disk, and what could be freed."""
