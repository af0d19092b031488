"""Archives: images to and from OCI layouts and docker-archives, digests unchanged.

Reading: ``tar`` and ``source`` give the members of an archive without unpacking it, ``oci`` and ``docker`` say which
images it holds, ``names`` what they are called here, ``importing`` brings them in as a pull would. Writing: ``survey``
finds what the store has of an index, ``exporting`` plans the members, ``oci_export`` and ``docker_export`` render them,
``writing`` writes them.
"""
