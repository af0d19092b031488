"""Recording: a real registry in, a tape without secrets out."""
