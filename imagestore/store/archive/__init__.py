"""Archives: images to and from OCI layouts and docker-archives, digests unchanged.

Reading: ``source`` gives the files of an archive without unpacking it (``tar``, ``sparse``, ``spool``), ``oci_layout``
and ``docker_archive`` find its images, ``import_names`` gives them names, ``importing`` brings them in as a pull would.
Writing: ``index_survey`` finds what the store has of an index, ``exporting`` chooses, ``archive_members`` makes the
files, ``writing`` writes them.
"""
