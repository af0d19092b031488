"""Looking after a store: accounts, reasons, evictions, checks, repairs; ``service`` is the part ImageStore inherits."""
