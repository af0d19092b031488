"""Unpacking: the root filesystem of an image, and a bundle that an OCI runtime starts.

``layer`` and ``reader`` read a layer's tar without trusting it, ``tree`` writes below one folder and never outside of
it, ``unpack`` applies all layers under a temporary name, ``bundle`` adds the runtime's configuration.

Memory doesn't grow with a layer: nothing is kept of an entry once it is written, but its path where a whiteout may come
(``brought``) and what this user can set only at the end, both in a ``path_table``. Folders that making entries has
changed get their times back as soon as entries go elsewhere.
"""
