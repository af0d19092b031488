"""Which keys a bucket gets, and what is said of one that can't be used; nothing is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import BucketSettings
from imagestore.content.bucket import Bucket
from imagestore.errors import ConfigError
from imagestore.oci import Digest

URL = "s3://bucket/prefix"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-environment")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-environment")


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    (tmp_path / "key").write_text("own\n")
    return str(tmp_path / "key")


def signed(access: str = "", secret: str = "") -> str:
    """The login in an address that a bucket signs."""
    settings = BucketSettings(URL, endpoint="http://127.0.0.1:9", access_key_file=access, secret_key_file=secret)
    return Bucket(settings).signed(Digest.of(b""), 60.0)


def test_the_environments_token_goes_with_the_environments_keys() -> None:
    assert "X-Amz-Credential=key-of-the-environment" in signed()
    assert "X-Amz-Security-Token=token-of-the-environment" in signed()


def test_a_key_from_a_file_goes_without_the_environments_token(key_file: str) -> None:
    for given in ({"access": key_file, "secret": key_file}, {"access": key_file}, {"secret": key_file}):
        address = signed(**given)
        assert f"X-Amz-Credential={'own' if 'access' in given else 'key-of-the-environment'}" in address
        assert "X-Amz-Security-Token" not in address


def test_a_key_that_is_missing_is_named(key_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY") as refused:
        signed(access=key_file)
    assert "secret_key_file" in refused.value.hint


@pytest.mark.parametrize("password", ["topword", "top/word", "top@word"])
def test_a_login_in_an_address_is_refused_and_not_shown(password: str) -> None:
    login = f"user:{password}"
    for settings in (
        BucketSettings(f"s3://{login}@bucket/prefix"),
        BucketSettings(URL, endpoint=f"https://{login}@127.0.0.1:9"),
        BucketSettings(URL, public_endpoint=f"https://{login}@127.0.0.1:9"),
        BucketSettings(URL, endpoint="https://user:12/word@127.0.0.1:9"),
    ):
        with pytest.raises(ConfigError) as refused:
            Bucket(settings)
        assert "word" not in f"{refused.value} {refused.value.hint}"
