"""How pulls of a node are let go: back-off, throttling, serial or parallel."""
