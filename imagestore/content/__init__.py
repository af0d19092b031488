"""Content: bytes by digest. ``api`` is the port, ``local`` the store on disk in containerd's layout."""
