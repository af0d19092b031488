"""Unpacking: the root filesystem of an image, and a bundle that an OCI runtime starts.

``layer`` and ``reader`` read a layer's tar without trusting it, ``tree`` writes below one folder and never outside of
it, ``unpack`` applies all layers under a temporary name, ``bundle`` adds the runtime's configuration.
"""
