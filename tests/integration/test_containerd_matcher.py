"""The matcher against containerd's own code: Debian's source package, built into a program that answers as it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagestore import CancelToken, Descriptor, Digest, platforms
from imagestore.errors import InvalidPlatformError
from imagestore.oci.select import Selection, select
from imagestore.platforms import Matcher, Platform, host
from imagestore.store import Documents
from tests.support.go_matcher import Cases, Image, answers, members, platform_of
from tests.support.golang import compile_program

pytestmark = pytest.mark.integration

_MATCHERS: dict[str, Any] = {
    "only": platforms.only,
    "only_strict": platforms.only_strict,
    "ordered": platforms.ordered,
    "any_of": platforms.any_of,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program("go_matcher", tmp_path_factory.mktemp("go"))


def test_this_machine_is_what_containerd_takes_it_for(program: Path) -> None:
    assert [host.detect()] == [platform_of(found) for found in answers(program, [{"ask": "host"}])]


def test_specifiers_mean_what_they_mean_to_containerd(program: Path) -> None:
    cases = Cases(1)
    texts = [cases.specifier() for _ in range(3000)]
    found = answers(program, ({"ask": "parse", "text": text} for text in texts))
    differing = [
        (text, ours, platform_of(theirs))
        for text, theirs in zip(texts, found, strict=True)
        if (ours := _parsed(text)) != platform_of(theirs)
    ]
    assert differing == []
    assert 1000 < sum(theirs is not None for theirs in found) < 2900


def _parsed(text: str) -> Platform | None:
    try:
        return platforms.parse(text)
    except InvalidPlatformError:
        return None


def test_platforms_have_containerds_normal_form_and_text(program: Path) -> None:
    cases = Cases(2)
    given = [cases.platform() for _ in range(3000)]
    found = answers(program, ({"ask": "normal", "candidates": [members(each)]} for each in given))
    for platform, (normal, text) in zip(given, found, strict=True):
        assert (platforms.normalize(platform), platforms.format(platform)) == (platform_of(normal), text), platform


def test_matchers_take_what_containerds_take_in_their_order(program: Path) -> None:
    cases = Cases(3)
    asked = []
    for _ in range(2000):
        name, wanted = cases.matcher()
        asked.append((name, wanted, [cases.near(wanted[-1]) for _ in range(6)]))
    questions = (
        {
            "ask": "fits",
            "matcher": name,
            "wanted": [members(each) for each in wanted],
            "candidates": [members(each) for each in candidates],
        }
        for name, wanted, candidates in asked
    )
    taken = 0
    for (name, wanted, candidates), (matched, better) in zip(asked, answers(program, questions), strict=True):
        matcher: Matcher = _MATCHERS[name](*wanted)
        about = (name, wanted, candidates)
        assert [matcher.match(each) for each in candidates] == matched, about
        assert [matcher.explain(each).matched for each in candidates] == matched, about
        assert [matcher.prefers(a, b) for a in candidates for b in candidates] == better, about
        taken += sum(matched)
    assert 2000 < taken < 10_000


def test_containerd_chooses_the_same_manifest(program: Path) -> None:
    cases = Cases(4)
    asked = []
    for _ in range(2000):
        name, wanted = cases.matcher()
        asked.append((name, wanted, cases.image(wanted[0])))
    questions = (
        {
            "ask": "choose",
            "matcher": name,
            "wanted": [members(each) for each in wanted],
            "target": image.target,
            "blobs": image.blobs,
        }
        for name, wanted, image in asked
    )
    chosen = more = 0
    for (name, wanted, image), theirs in zip(asked, answers(program, questions), strict=True):
        ours = _config_chosen(image, _MATCHERS[name](*wanted))
        if theirs is None and ours is not None:
            # Where it gives up we look further, and only there.
            assert not image.is_plain, (name, wanted, image)
            more += 1
            continue
        assert ours == theirs, (name, wanted, image)
        chosen += theirs is not None
    assert chosen > 800
    assert more < 200


def _config_chosen(image: Image, matcher: Matcher) -> str | None:
    """Digest of the config of the manifest that we choose."""
    documents = Documents(None, None, None, CancelToken())
    for digest, text in image.blobs.items():
        documents.remember(_descriptor(digest, text), text.encode())
    target = Descriptor(image.target["mediaType"], Digest.parse(image.target["digest"]), image.target["size"])
    found: Selection = select(documents.index(target), matcher, documents, wanted="")
    return None if found.chosen is None else str(documents.manifest(found.chosen.descriptor).config.digest)


def _descriptor(digest: str, text: str) -> Descriptor:
    return Descriptor("", Digest.parse(digest), len(text))
