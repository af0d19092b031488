"""A store's records in an embedded SQLite database."""
