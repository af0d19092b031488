"""Ways to reach the engine: httpx transports, a respx router, loopback servers, a proxy."""
