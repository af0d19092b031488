"""Whatever a registry or its token service puts into the fields of an answer: a result, or a typed error that can be
printed and holds no secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
from hypothesis import given
from hypothesis import strategies as st

from imagestore import CancelToken, Credential, Descriptor, Digest, Reference, Secret, TransferPolicy
from imagestore.errors import ImageStoreError
from imagestore.oci import media_types
from imagestore.registry.client_factory import connect
from imagestore.registry.credentials.model import FoundCredential, Target
from imagestore.registry.retry import Timing
from tests.support.streams import drain

if TYPE_CHECKING:
    from collections.abc import Callable

PASSWORD = "CANARY-password"
REFERENCE = Reference.parse("registry.example/team/app:1")
HEX = "a" * 64
LAYER = Descriptor(
    "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
    Digest("sha256", HEX),
    2,
    urls=("https://foreign.example/x",),
)
INDEX = Descriptor(media_types.OCI_INDEX, Digest.of(b"{}"), 2)

ADDRESSES = [
    *("", "/x", "?", "#", "http://[", "//[::1", "//169.254.169.254/", "https://registry.example:0/", "data:,x", "/\t/"),
    *(
        "https://registry.example:99999999/",
        "https://user:CANARY@x/",
        "https://\xff/",
        "https://a..b/",
        "https://1.2.3/",
    ),
    *("https://" + "a" * 9000, "https://registry.example\\@evil/", "https://x/%zz", "https://[fe80::1%25eth0]/"),
]
FIELDS = {
    "Content-Type": ["", "text/html", "application/json", media_types.OCI_INDEX, "text/plain; charset=\xff"],
    "Location": ADDRESSES,
    "WWW-Authenticate": [
        *("Basic", "Bearer", "Bearer realm=//x", "Digest a=b, Basic realm=x", 'Basic realm="\x00"', 'Bearer realm="x'),
        *(f'Bearer realm="{address}"' for address in ADDRESSES),
        'Bearer realm="https://registry.example/token?x=[",service="\xe9",scope="a b \\""',
    ],
    "Retry-After": [
        "",
        "-1",
        "1e3",
        "9" * 20,
        "Wed, 99 Oct 2015 07:28:00 GMT",
        "\xb2",
        "Thu, 01 Jan 1970 00:00:00 -9999",
    ],
    "Link": [f"<{address}>; rel=next" for address in ADDRESSES] + ["<", "<?n=%zz&last=%00\xff>; rel=next"],
    "Content-Range": ["", "bytes 0-1/2", "bytes 0-", "bytes 5-2/9", "bytes 0-" + "9" * 30 + "/1", "bytes */5"],
    "Content-Length": ["0", "2", "-5", "abc", "9" * 30, "1_0", "\xb2"],
    "Docker-Content-Digest": [f"sha256:{HEX}", "x", "sha512:" + "b" * 128, "sha256:" + "A" * 64, f" sha256:{HEX}"],
    "Warning": ['299 - "a\\"b\x1b[2J"', '299 - "', '299 - "' + "\\" * 3000],
    "OCI-Filters-Applied": ["artifactType", ",,", "\xff"],
}
BODIES = [
    *(b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"token":"a"}', b'{"token":1}', b'{"token":"a b"}', b'{"tags":["a"]}'),
    *(
        b'{"access_token":"x","token":"y"}',
        b'{"manifests":[]}',
        b'{"token":"\\ud800"}',
        b'{"token":"a","expires_in":1e999}',
    ),
    b'{"errors":[{"code":"\\ud800","message":"\x1b[2J\\udfff"}]}',
    b'{"a":' * 50 + b"1" + b"}" * 50,
    b'{"schemaVersion":2,"manifests":[{"mediaType":"a/b","digest":"sha256:' + HEX.encode() + b'","size":1}]}',
]
STATUSES = [
    200,
    200,
    200,
    206,
    204,
    299,
    301,
    302,
    304,
    307,
    308,
    400,
    401,
    401,
    403,
    404,
    405,
    416,
    429,
    500,
    503,
    599,
]


@st.composite
def answers(draw: st.DrawFn) -> Callable[[], httpx.Response]:
    fields = draw(st.dictionaries(st.sampled_from(sorted(FIELDS)), st.integers(0, 1000), max_size=6))
    raw = [(name, FIELDS[name][pick % len(FIELDS[name])]) for name, pick in fields.items()]
    status, body = draw(st.sampled_from(STATUSES)), draw(st.sampled_from(BODIES))
    headers = [(name.encode(), value.encode("latin-1")) for name, value in raw]
    return lambda: httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))


class Alice:
    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential:
        return FoundCredential(Credential("alice", Secret(PASSWORD)), "a test")


@given(st.lists(answers(), min_size=1, max_size=5))
def test_any_fields_give_a_result_or_a_typed_printable_error(script: list[Callable[[], httpx.Response]]) -> None:
    count = 0

    def answer(_request: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        return script[count % len(script)]()

    client = connect(
        credentials=Alice(),
        policy=TransferPolicy(foreign_hosts=frozenset({"foreign.example"})),
        transport=httpx.MockTransport(answer),
        timing=Timing(sleep=lambda cancel, seconds: cancel.check()),
    )

    def read_blob(offset: int) -> None:
        with client.blob(REFERENCE, LAYER, offset=offset, cancel=CancelToken(60)) as stream:
            drain(stream)

    with client:
        for work in (
            lambda: client.resolve(REFERENCE, cancel=CancelToken(60)),
            lambda: client.document(REFERENCE, INDEX, cancel=CancelToken(60)),
            lambda: client.tags(REFERENCE, cancel=CancelToken(60)),
            lambda: client.referrers(REFERENCE, Digest("sha512", "a" * 128), cancel=CancelToken(60)),
            lambda: read_blob(0),
            lambda: read_blob(1),
        ):
            try:
                work()
            except ImageStoreError as error:
                for text in (str(error), error.hint):
                    assert text.isprintable()
                    assert "CANARY" not in text
