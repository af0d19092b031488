"""Who a container starts as: the user of an image's config, by the image's own accounts (passwd(5), group(5)).

Read as moby/sys/user does, which containerd, podman and umoci use: a line ends with a line feed, a member with a colon,
missing members are empty, and a number means an id, never a name. A number that can't be read isn't 0 here: a broken
line makes nobody root, nor a member of root's group.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from imagestore.errors import DocumentError
from imagestore.store.unpack.entry import MOST_ID, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.store.unpack.tree import Tree

_MAX_BYTES: Final = 1024 * 1024
_INTEGER: Final = re.compile("[+-]?0*([0-9]+)")
_ID_DIGITS: Final = len(str(MOST_ID))
#: Around a line: White_Space of Unicode. str.strip() has more.
_BLANKS: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
    "\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
#: An integer that is no user's and no group's.
_NO_ID: Final = -1


class _Account(NamedTuple):
    """A line of a file.

    Attributes:
        id: of the user or the group.
        rest: the member behind it: a user's group, or a group's users.
    """

    name: str
    id: int
    rest: str


def process_user(text: str, tree: Tree, *, what: str) -> dict[str, Any]:
    """The object ``process.user`` of a bundle.

    Args:
        text: ``user``, ``uid``, ``user:group``, ``uid:gid`` or a mixture; empty for root.
        tree: the unpacked image.

    Raises:
        DocumentError: the image hasn't such a user or group, or its accounts can't be read.
    """
    name, group = [*text.split(":"), ""][:2]
    user = _found(name or "0", _accounts(tree, "passwd", what), "user", what)
    groups = list(_accounts(tree, "group", what))
    gid = _found(group, groups, "group", what).id if group else _group_of(user, what)
    further = [each.id for each in groups if user.name and user.name in each.rest.split(",")]
    found: dict[str, Any] = {"uid": user.id, "gid": gid}
    return found | ({"additionalGids": sorted({gid, *further})} if further else {})


def _found(text: str, accounts: Iterator[_Account] | list[_Account], kind: str, what: str) -> _Account:
    """The first account with this name or number; a number needs none."""
    number = _number(text)
    if number == _NO_ID:
        raise DocumentError(what, [f"starts as {kind} {shown(text)}; the ids are 0 to {MOST_ID}"])
    for account in accounts:
        if account.id == number or (number is None and account.name == text):
            return account
    if number is None:
        file = "/etc/passwd" if kind == "user" else "/etc/group"
        raise DocumentError(what, [f"starts as {kind} {shown(text)}, which its {file} has no id for"])
    return _Account("", number, "")


def _group_of(user: _Account, what: str) -> int:
    """As everywhere, that of root where nothing is said of another one."""
    gid = _number(user.rest or "0")
    if gid is None or gid == _NO_ID:
        raise DocumentError(what, [f"starts as user {shown(user.name)}, whose group {shown(user.rest)} is no id"])
    return gid


def _accounts(tree: Tree, name: str, what: str) -> Iterator[_Account]:
    """The lines of /etc/passwd or /etc/group that have an id."""
    try:
        data = tree.read(("etc", name), _MAX_BYTES)
    except OSError as error:
        raise DocumentError(what, [f"has an /etc/{name} that can't be read: {error.strerror}"]) from error
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        members = [*line.strip(_BLANKS).split(":"), "", "", ""]
        number = _number(members[2])
        if number is not None and number != _NO_ID and not members[0].startswith("#"):
            yield _Account(members[0], number, members[3])


def _number(text: str) -> int | None:
    """An id; _NO_ID for another integer, None for what is none."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    number = int(found[1]) if len(found[1]) <= _ID_DIGITS else MOST_ID + 1
    return number if number <= MOST_ID and (number == 0 or not text.startswith("-")) else _NO_ID
