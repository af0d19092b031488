"""The mirror's table: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import config, platforms
from imagestore.config import BucketSettings
from imagestore.errors import ConfigError
from imagestore.mirror import MIRROR_PLUGIN, MirrorSettings, Upstream

HOST = platforms.parse("linux/amd64")
TABLE = '[plugins."io.imagestore.mirror.v1"]\n'


def read(text: str) -> MirrorSettings:
    return config.loads(f"version = 3\n{text}", filename="c.toml", host=HOST).plugin(MIRROR_PLUGIN)


def test_the_examples_table_can_be_used() -> None:
    example = (Path(__file__).parents[3] / "config.toml.example").read_text()
    table = example[example.index('# [plugins."io.imagestore.mirror.v1"]') :]
    lines = [line.removeprefix("#") for line in table.splitlines()]
    found = read("\n".join(line for line in lines if not line.strip().startswith("#")))
    assert found.replica in found.replicas
    assert found.upstreams["docker.io"].quota_bytes == 200 << 30


def test_nothing_by_default() -> None:
    assert read("") == MirrorSettings()


def test_all_members() -> None:
    found = read(
        """
[plugins."io.imagestore.mirror.v1"]
default_upstream = "docker.io"
offline = true
catalog = true
replicas = ["http://a:5000/", "https://b"]
replica = "http://a:5000"
replica_ca = "/ca.pem"
replica_certificate = "/r.pem"
replica_key = "/rk.pem"
certificate = "/c.pem"
key = "/k.pem"
client_ca = "/clients.pem"
max_connections = 10
answer_timeout = "2s"
local_quota = "3Gi"
bucket.url = "s3://some-bucket/a/b/"
bucket.endpoint = "http://s3:7480/"
bucket.public_endpoint = "https://s3.example"
bucket.region = "eu"
bucket.access_key_file = "/a"
bucket.secret_key_file = "/s"
bucket.redirect = true
[plugins."io.imagestore.mirror.v1".upstreams."docker.io"]
endpoints = ["https://near.example", "https://registry-1.docker.io"]
handlers = ["runc"]
platforms = ["linux/arm64"]
tag_freshness = "1d"
immutable_tags = ["v*"]
serve_stale = false
requests_per_second = 5
bytes_per_second = 1000
max_connections = 3
quota = "10Gi"
private = true
"""
    )
    upstream = Upstream(
        "docker.io",
        endpoints=("https://near.example", "https://registry-1.docker.io"),
        handlers=("runc",),
        platforms=("linux/arm64",),
        fresh_seconds=86400.0,
        immutable_tags=("v*",),
        serve_stale=False,
        requests_per_second=5,
        bytes_per_second=1000,
        max_connections=3,
        quota_bytes=10 << 30,
        private=True,
    )
    assert found == MirrorSettings(
        upstreams={"docker.io": upstream},
        default_upstream="docker.io",
        offline=True,
        catalog=True,
        replicas=("http://a:5000", "https://b"),
        replica="http://a:5000",
        replica_ca="/ca.pem",
        replica_certificate="/r.pem",
        replica_key="/rk.pem",
        certificate="/c.pem",
        key="/k.pem",
        client_ca="/clients.pem",
        max_connections=10,
        answer_seconds=2.0,
        bucket=BucketSettings(
            "s3://some-bucket/a/b",
            endpoint="http://s3:7480",
            public_endpoint="https://s3.example",
            region="eu",
            access_key_file="/a",
            secret_key_file="/s",
            redirects=True,
        ),
        local_quota_bytes=3 << 30,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TABLE + 'default_upstream = "docker.io"', "none of the upstreams"),
        (TABLE + 'replicas = ["http://a:5000"]', "expected one of the replicas"),
        (TABLE + 'replicas = ["a:5000"]', "expected URLs"),
        (TABLE + 'replicas = ["http://user:pass@a:5000"]', "expected URLs"),
        (TABLE + 'client_ca = "/x"', "needs a certificate"),
        (TABLE + "max_connections = 0", "from 1 to 65536"),
        (TABLE + 'answer_timeout = "soon"', "soon"),
        (TABLE + 'answer_timeout = "-1s"', "negative"),
        (TABLE + "offline = 1", "true or false"),
        (TABLE + 'bucket = {url = "http://x/y"}', "expected s3://BUCKET"),
        (TABLE + 'bucket = {url = "s3://bucket", endpoint = "s3:80"}', "expected a URL"),
        (TABLE + "bucket = 1", "a table"),
        ('[plugins."io.imagestore.mirror.v1".upstreams."UPPER/x"]', "expected a registry's host"),
        ('[plugins."io.imagestore.mirror.v1".upstreams."r.example"]\nquota = "much"', "quota"),
        ('[plugins."io.imagestore.mirror.v1".upstreams."r.example"]\nquota = "0"', "above 0"),
        ('[plugins."io.imagestore.mirror.v1".upstreams."r.example"]\nprivate = true', "none are asked for"),
        ('[plugins."io.imagestore.mirror.v1".upstreams."r.example"]\nhandlers = ["kata"]', "no runtime handler 'kata'"),
        ('[plugins."io.imagestore.mirror.v1".upstreams."r.example"]\nplatforms = ["a/b/c/d"]', "a/b/c/d"),
    ],
)
def test_what_can_not_be_used_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert said in str(caught.value)


def test_unknown_keys_are_kept_and_reported() -> None:
    text = 'version = 3\n[plugins."io.imagestore.mirror.v1".upstreams."r.example"]\nqouta = "1Gi"'
    loaded = config.loads(text, filename="c", host=HOST, plugins=[MIRROR_PLUGIN])
    assert any("did you mean quota?" in finding.hint for finding in loaded.findings)
