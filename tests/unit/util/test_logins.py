"""Addresses in messages: nothing of a login is shown, whatever characters its password has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import ConfigError, InvalidReferenceError
from imagestore.util.logins import reference_without_login, without_login, without_logins

FORMS = ["https://{}@m.example/x", "postgresql:/{}@m.example:5432/x", "//{}@m.example", "{}@m.example:5000/x"]
#: With characters that end a URL's authority, or seem to.
PASSWORDS = [
    "topword",
    "top@word",
    "top/word",
    "top%word",
    "top?word",
    "top#word",
    "top:word",
    "top word",
    "top//@word",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("password", PASSWORDS)
def test_no_part_of_a_password_is_shown(form: str, password: str) -> None:
    address = form.format(f"user:{password}")
    for shown in (without_login(address), reference_without_login(address), str(InvalidReferenceError(address, 0, ""))):
        assert "top" not in shown
        assert "word" not in shown
        assert "@m.example" in shown


@given(st.sampled_from(FORMS), st.text("ab12@/?#%: \\[]'\"", min_size=1).map(lambda text: f"QQ{text}QQ"))
def test_whatever_the_password_nothing_before_the_host_is_shown(form: str, password: str) -> None:
    assert "QQ" not in without_login(form.format(f"user:{password}"))


@pytest.mark.parametrize("text", ["https://user:word", "https://user:word/x", "http://user:12word?x"])
def test_a_port_that_is_none_may_be_a_password(text: str) -> None:
    assert "word" not in without_login(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://m.example:5000/x",
        "https://[fe80::1]:5000/x",
        "unix:///run/a@b.sock",
        "/run/user@1000/x",
        "m.example/x:1@sha256:0123",
    ],
)
def test_what_has_no_login_is_shown(text: str) -> None:
    assert without_login(text) == text


@pytest.mark.parametrize("text", ["debian@latest", "debian:12@latest", "m.example/x:1@sha256:xyz", "debian:12"])
def test_a_references_mistake_is_shown(text: str) -> None:
    assert reference_without_login(text) == text


def test_a_message_keeps_names_of_files_with_an_at() -> None:
    said = "endpoint 'unix:///run/a@b.sock': /run//x@y isn't there; m.example/a@sha256:00 from https://m.example"
    assert without_logins(said) == said


def test_every_error_leaves_out_the_logins_that_it_quotes() -> None:
    quoted = "upstream 'https://user:top@wo/rd@m.example/x': not known; see https://n.example or ops@n.example"
    shown = "upstream 'https://***@m.example/x': not known; see https://n.example or ops@n.example"
    error = ConfigError(quoted, hint=quoted)
    assert (str(error), error.hint, without_logins(quoted)) == (shown, shown, shown)
