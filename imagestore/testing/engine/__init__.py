"""The engine that decides every answer: rules of a registry, gates, recorded exchanges, and the ledger."""
