"""Runtime endpoints in configuration files."""

from __future__ import annotations

import pytest

from imagestore.errors import ConfigError
from imagestore.node.config_members import endpoint_url, socket_path


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("unix:///run/x.sock", "unix:///run/x.sock"),
        ("/run/x.sock", "unix:///run/x.sock"),
        ("tcp://127.0.0.1:80", "tcp://127.0.0.1:80"),
        ("npipe://./pipe/x", "npipe://./pipe/x"),
        ("UNIX:///x", "unix:///x"),
    ],
)
def test_endpoints_are_read(text: str, endpoint: str) -> None:
    assert endpoint_url(text) == endpoint


@pytest.mark.parametrize(
    "text", ["", " ", "unix:///a b", "http://x", "unix://", "unix://x", "run/x", "unix:///a\nb", "a"]
)
def test_bad_endpoints_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        endpoint_url(text)


def test_only_unix_sockets_are_dialled() -> None:
    assert socket_path("/x") == "/x"
    for text in ("tcp://x:1", "npipe://./pipe/x", "unix:///" + "x" * 120):
        with pytest.raises(ConfigError):
            socket_path(text)
