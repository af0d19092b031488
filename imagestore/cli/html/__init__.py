"""Pages of HTML: one file each, without scripts, and without anything from the network."""
