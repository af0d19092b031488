"""TLS contexts from connection settings.

The system's authorities are trusted, plus those configured for a host. A client certificate is presented to the host
it was configured for and to no other (GHSA-whvf-jp7m-59f3). A private authority is also trusted for the hosts that the
registry names, because its token server and its storage usually share it. Certificates are verified as Go verifies them
for containerd: a file that works as ``ca`` there works here.
"""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.config.connection import ConnectionSettings, load_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.registry.transport.addresses import Origin

#: What to do about a server that asks for a client certificate.
CLIENT_HINT: Final = "if the server wants a client certificate, name it as 'client' in the registry's hosts.toml"
# OpenSSL's numbers: not yet valid, expired; another host name, another address.
_OUT_OF_TIME: Final = frozenset({9, 10})
_OTHER_NAME: Final = frozenset({62, 64})
_OLD_VERSIONS: Final = frozenset({"TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"})
# OpenSSL's numbers: the authority's certificate isn't found, or isn't trusted.
_UNKNOWN_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21, 27})
# Before TLS 1.3 there is no alert of its own for this.
_NO_CLIENT: Final = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"})
_REFUSED_CLIENT: Final = frozenset(
    {"TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_ACCESS_DENIED"}
    | {f"SSLV3_ALERT_{what}" for what in ("BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED")}
    | {f"SSLV3_ALERT_{what}" for what in ("CERTIFICATE_REVOKED", "UNSUPPORTED_CERTIFICATE")}
)

# How the end of a connection looks inside TLS: without close_notify, with it, or as a system error.
_CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_HUNG_UP: Final = (*_CUT_OFF, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
#: What to do about a server that closes the connection before TLS is agreed on.
HANG_UP_HINT: Final = (
    'if the server speaks plain HTTP, say so with server = "http://..." in the registry\'s hosts.toml; otherwise check '
    "the port, and whether a proxy or firewall on the way ends TLS connections"
)

Stamp = tuple[tuple[int, int, int], ...]


def settings_for(origin: Origin, *, home: Origin | None, settings: ConnectionSettings) -> ConnectionSettings:
    """The part of the home endpoint's settings that counts for another origin."""
    if home is None or origin == home:
        return settings
    # The same host on another port (a token server, for example) is trusted as the host itself; another host isn't.
    skip_verify = settings.skip_verify and origin.host == home.host
    return replace(settings, client_pairs=(), skip_verify=skip_verify)


def files_stamp(settings: ConnectionSettings) -> Stamp:
    """Changes when a file that the settings name is replaced, edited, made or removed."""
    pairs = (path for pair in settings.client_pairs for path in pair if path)
    return tuple(_file_stamp(path) for path in (*settings.ca_files, *pairs))


def _file_stamp(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def make_context(settings: ConnectionSettings, *, is_by_name: bool = False) -> ssl.SSLContext:
    """A TLS client context.

    Args:
        settings: of the host.
        is_by_name: look for the system's authorities in their folder, where it has them by name, when they are needed;
            before a server is refused, the caller tries add_bundle(). Else all are read at once.

    Raises:
        ConfigError: a certificate or key file can't be read or used; names the file and line that name it.
    """
    context = ssl.create_default_context(capath=(is_by_name and _hashed_folder()) or None)
    # As other registry clients, on every Python: accept an authority's certificate that lacks what RFC 5280 requires
    # (3.13 refuses those by default), and one that another authority signed, without that one.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["http/1.1"])
    if not _has_system_roots():
        import certifi

        context.load_verify_locations(certifi.where())
    for _, fault in load_certificates(context, settings):
        raise fault
    if settings.skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def add_bundle(context: ssl.SSLContext, error: BaseException) -> bool:
    """Read all of the system's authorities, if a server's was looked for in their folder only.

    An operator may have added one to the bundle alone. To read the bundle takes tens of milliseconds, so that is done
    before a server is refused, and not for each process.

    Returns:
        Whether another handshake may succeed.
    """
    failure = failure_in(error)
    if not _hashed_folder() or getattr(failure, "verify_code", 0) not in _UNKNOWN_AUTHORITY:
        return False
    before = context.cert_store_stats()["x509"]
    context.load_default_certs()
    return context.cert_store_stats()["x509"] > before


def failure_in(error: BaseException) -> ssl.SSLError | None:
    """The refused handshake that caused a library's error; None if it was something else, as a broken connection."""
    for cause in causes(error):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _CUT_OFF):
            return cause
    return None


def is_hang_up(error: BaseException) -> bool:
    """Whether a peer closed the connection during a handshake; OpenSSL's text doesn't say that."""
    return any(isinstance(cause, _HUNG_UP) for cause in causes(error))


def causes(error: BaseException) -> Iterator[object]:
    """An error, its arguments and its causes: libraries wrap the original as one or the other, some twice."""
    link: BaseException | None = error
    while link is not None:
        yield from (link, *link.args)
        link = link.__cause__


def describe(failure: ssl.SSLError) -> str:
    """Why a handshake failed, for people."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {failure.verify_message}"
    return str(failure.reason or "handshake failed").replace("_", " ").lower()


def hint(failure: ssl.SSLError) -> str:
    """What to do about a failed handshake."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        # One that a given transport made has none.
        code = getattr(failure, "verify_code", 0)
        if code in _OUT_OF_TIME:
            clock = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            return f"the server's certificate has to be renewed, unless the clock here is wrong: it shows {clock}"
        if code in _OTHER_NAME:
            return "ask for the registry by a name that its certificate holds, or give it one that holds this name"
        return "if the registry has a private authority, name its file as 'ca' in the registry's hosts.toml"
    reason = str(failure.reason or "")
    if reason.endswith("UNRECOGNIZED_NAME"):
        return "the server has no certificate for this name: ask for the registry by the name that it is known by"
    if reason in _OLD_VERSIONS:
        return "the server speaks no TLS that is taken here, which is 1.2 and 1.3"
    if reason in _NO_CLIENT:
        return CLIENT_HINT
    if reason in _REFUSED_CLIENT:
        return "the server doesn't accept the client certificate that is named as 'client' in its hosts.toml"
    if failure.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}:
        return 'if the registry speaks plain HTTP, say so with server = "http://..." in its hosts.toml'
    return ""


def _hashed_folder() -> str:
    """The system's folder of authorities if OpenSSL finds each by its name there, when it is needed; else empty."""
    paths = ssl.get_default_verify_paths()
    if paths.openssl_cafile_env in os.environ or paths.openssl_capath_env in os.environ or not paths.capath:
        return ""
    return paths.capath if any(name.endswith(".0") for name in _entries(paths.capath)) else ""


def _has_system_roots() -> bool:
    paths = ssl.get_default_verify_paths()
    folders = os.environ.get(paths.openssl_capath_env, paths.openssl_capath)
    return bool(paths.cafile) or any(_entries(folder) for folder in folders.split(os.pathsep))


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
