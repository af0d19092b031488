"""The publisher's table: what is read, and what is refused."""

from __future__ import annotations

import pytest

from imagestore import config, platforms
from imagestore.errors import ConfigError
from imagestore.publish import PUBLISH_PLUGIN, PublishSettings

HOST = platforms.parse("linux/amd64")


def read(text: str) -> PublishSettings:
    table = f'version = 3\n[plugins."{PUBLISH_PLUGIN.name}"]\n{text}'
    return config.loads(table, filename="c.toml", host=HOST).plugin(PUBLISH_PLUGIN)


def test_nothing_by_default() -> None:
    assert read("") == PublishSettings() == config.default(HOST).plugin(PUBLISH_PLUGIN)


def test_all_members() -> None:
    text = 'address = "/run/c.sock"\nnamespace = "k8s.io"\ncontent = "link"\nrepair_interval = "1m"'
    assert read(text) == PublishSettings("/run/c.sock", "k8s.io", "link", 60.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('address = "tcp://c"', "c.toml:3: .*address: expected a unix socket, got 'tcp://c'"),
        ('namespace = "moby"', "the only namespace in which CRI looks, got 'moby'"),
        ('content = "move"', "expected one of 'auto', 'link', 'copy', got 'move'"),
        ('repair_interval = "0s"', "expected at least 1s, got '0s'"),
        ("address = 1", "expected a text"),
    ],
)
def test_what_can_not_be_used_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(text)
