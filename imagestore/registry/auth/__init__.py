"""Authentication at a registry: challenges, scopes, token services, and whom a secret may go to."""
