"""Own JSON Schemas (Draft 2020-12), one flat file for each kind of document."""
