"""Platforms: what an image is for, what a host or guest runs, and whether the two fit.

    >>> from imagestore import platforms
    >>> node = platforms.default_for(platforms.parse("windows(10.0.17763)/amd64"))
    >>> node.match(platforms.parse("windows(10.0.20348.1970)/amd64"))
    False
    >>> print(node.explain(platforms.parse("windows(10.0.20348.1970)/amd64")).rule)
    os.version.build-exact

A platform is a value (:class:`Platform`) and stays as it was written. Text goes in through :func:`parse` and out
through :func:`format` and :func:`format_all`; :func:`normalize` gives the form in which platforms compare.

A matcher answers three questions about a candidate: does it fit (``match``), is it better than another (``prefers``),
and why (``explain``). Which one to use:

* :func:`default_for`: what a node of some platform takes, Windows versions and macOS's Linux images included;
* :func:`only`: one platform and what else its processor runs;
* :func:`only_strict`, :func:`exact`: nothing but that platform;
* :func:`only_os`, :func:`ordered`, :func:`any_of`, :func:`everything`: for listings, exports and unpacking.

Answers are containerd's (containerd/platforms 1.0.0-rc.5) but for what docs/matching.md lists.
:mod:`~imagestore.platforms.host` says what a machine is, :mod:`~imagestore.platforms.windows` which Windows build
runs where.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
