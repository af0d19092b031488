"""A registry that wants logins: the passwords of docker-registry, and a token service that it trusts."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.server
import json
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD: Final = "s3cret"
#: bcrypt of the password, the only form docker-registry takes.
HTPASSWD: Final = "alice:$2b$05$ImTr06ZbrGU/SExG9V44.On5Yd.PBK9faL2q74Ka5h0WoLMwiiUli\n"


class TokenService(http.server.ThreadingHTTPServer):
    """Signs tokens as the registry's specification wants them, for alice only."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _TokenHandler)
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tokens of a test")])
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(1)
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.bundle = folder / "tokens.pem"
        self.bundle.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        self.scopes: list[str] = []

    @property
    def address(self) -> str:
        """Its own, without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def configuration(self) -> str:
        """The registry's auth section."""
        realm = f"{self.address}/token"
        return f"auth: {{token: {{realm: {realm}, service: a-test, issuer: a-test, rootcertbundle: {self.bundle}}}}}"

    def token(self, scopes: list[str]) -> str:
        chain = [base64.b64encode(self.certificate.public_bytes(serialization.Encoding.DER)).decode()]
        now = int(time.time())
        access = [
            dict(zip(("type", "name", "actions"), (kind, name, actions.split(",")), strict=True))
            for kind, name, actions in (scope.split(":") for scope in scopes)
        ]
        times = {"exp": now + 60, "nbf": now - 5, "iat": now}
        claims = {"iss": "a-test", "sub": "alice", "aud": "a-test", "jti": str(now), "access": access, **times}
        head = {"typ": "JWT", "alg": "RS256", "x5c": chain}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class _TokenHandler(http.server.BaseHTTPRequestHandler):
    server: TokenService

    def do_GET(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        expected = "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        is_alice = self.headers.get("Authorization") == expected
        self.server.scopes += query.get("scope", [])
        body = json.dumps({"token": self.server.token(query.get("scope", []))} if is_alice else {}).encode()
        self.send_response(200 if is_alice else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def token_service(folder: Path) -> Iterator[TokenService]:
    """A running token service; its key is in the folder."""
    with TokenService(folder) as service:
        thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield service
        service.shutdown()
        thread.join()
