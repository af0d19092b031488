"""containerd's filter grammar, spelling by spelling."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import CancelToken
from imagestore.containerd.filters import Fields, Filter, labelled
from imagestore.errors import InvalidInputError, OperationCancelledError

FIELDS = labelled(
    {"name": "docker.io/library/x:1", "target.digest": "sha256:ab"},
    labels={"a": "1", "containerd.io/gc.root": "2026", "a.b/c": "x y", "empty": "", "é": "é"},
)


def fits(filters: Sequence[str], fields: Fields) -> bool:
    return bool([*Filter.parse(filters).among([fields], lambda each: each, CancelToken())])


@pytest.mark.parametrize(
    ("filters", "is_wanted"),
    [
        ([], True),
        ([""], True),
        (["  "], True),
        (["name"], True),
        (["size"], False),
        (["size==3"], False),
        (["size!=3"], True),
        (["size~=^$"], True),
        (["name==docker.io/library/x:1"], True),
        (['name=="docker.io/library/x:1"'], True),
        (['name!="/x/"'], True),
        (["name!=x/|"], True),
        (["name == docker.io/library/x:1"], True),
        (["name!=docker.io/library/x:1"], False),
        (["name~=library"], True),
        (["name~=^library"], False),
        (["name~=/io\\/lib/"], True),
        (["name~=|io/lib|"], True),
        (["name~=/docker\\\\.io/"], True),
        (["name~=|\\\\d$|"], True),
        (["name~=/\\\\blibrary\\\\b/"], True),
        (["name~=/\\blibrary\\b/"], False),
        (["name~=/\\u006cib/"], True),
        (["name~=|^x\\|:1$|"], True),
        (['name~=/"/'], False),
        (['name=="\\144ocker.io/library/x\\U0000003a1"'], True),
        (['labels."é"=="\\xc3\\xa9"'], True),
        (['labels."\\303\\251"=="é"'], True),
        (['name!="\\xff"'], True),
        (["name~=/library|\\xff/"], False),
        (['name=="\\ud800"'], False),
        (["name~=(["], False),
        (["target.digest==sha256:ab"], True),
        (["labels.a==1"], True),
        (["labels.a"], True),
        (["labels.b"], False),
        (["labels.empty"], True),
        (['labels."containerd.io/gc.root"'], True),
        (['labels."a.b/c"=="x y"'], True),
        (['labels."a.b/c"=="x\\x20y"'], True),
        (['labels."a.b/c"=="x\\u0020y"'], True),
        (["labels"], False),
        (["labels.a==1,name~=library"], True),
        (["labels.a==2,name~=library"], False),
        (["labels.a==1 , name"], True),
        (["labels.a==2", "name~=library"], True),
        (["labels.a==2", "labels.a==3"], False),
    ],
)
def test_what_is_wanted(filters: list[str], is_wanted: bool) -> None:
    assert fits(filters, FIELDS) is is_wanted


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("=", 0),
        ("name==", 6),
        ("name=1", 4),
        ("name,", 5),
        ("name,,labels", 5),
        ("name==a b", 8),
        ("labels.", 7),
        ("labels..a", 7),
        ('labels."a', 7),
        ('name=="a', 6),
        ('name=="\\q"', 10),
        ("name~=|io\\\\|x|", 12),
        ("name~=/\\d/", 10),
        ("name~=/\\'/", 10),
        ('name~=/\\"/', 10),
        ('name~="\\/"', 10),
        ("name~=|\\/|", 10),
        ('name=="\\x4"', 11),
        ('name=="\\400"', 12),
        ('name=="\\U00110000"', 18),
        ('name=="a\nb"', 6),
        ("name~=/a\nb/", 6),
        ("näme", 1),
        ("name<3", 4),
        ("name===x", 4),
        ("name!=~x", 4),
        ("name==/library/", 6),
        ("name!= |x|", 7),
        ("name==/", 6),
    ],
)
def test_errors_point_at_the_place(text: str, position: int) -> None:
    with pytest.raises(InvalidInputError, match=f"at position {position}: ") as caught:
        Filter.parse([text])
    assert " >>>> " in str(caught.value)


def test_filters_have_bounds() -> None:
    with pytest.raises(InvalidInputError, match="at most"):
        Filter.parse(["a" * 20_000])
    with pytest.raises(InvalidInputError, match="at most"):
        Filter.parse(["a"] * 2000)


_KEYS = st.text(min_size=1, max_size=12).filter(lambda text: "\x00" not in text)


def quoted(text: str) -> str:
    """As a client would write it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@given(_KEYS, st.text(max_size=12))
def test_any_label_can_be_asked_for_in_quotes(key: str, value: str) -> None:
    fields = labelled({}, labels={key: value})
    assert fits([f"labels.{quoted(key)}=={quoted(value)}"], fields)
    assert not fits([f"labels.{quoted(key)}!={quoted(value)}"], fields)
    assert not fits([f"labels.{quoted(key + 'x')}"], fields)


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        fits([text], FIELDS)
    except InvalidInputError as error:
        assert "filter" in str(error)


def test_expressions_of_a_request_are_bounded_together() -> None:
    assert fits(["name~=a.*b"] * 64, FIELDS) is False
    for filters in (["name~=a"] * 65, [",".join(["name~=a"] * 65)]):
        with pytest.raises(InvalidInputError, match="at most 64 regular expressions"):
            Filter.parse(filters)


def test_a_list_ends_between_objects_when_the_caller_leaves() -> None:
    token = CancelToken()
    found = Filter.parse(["name~=^a"]).among(["a", "ab"], lambda name: labelled({"name": name}), token)
    assert next(found) == "a"
    token.cancel("the caller went away")
    with pytest.raises(OperationCancelledError):
        next(found)


def test_a_list_whose_expressions_cost_too_much_is_refused() -> None:
    """A fifth of a million texts, each as long as containerd lets a label be."""
    expression = "[a-b]{500}c"
    fields = labelled({"name": "c" * 4096})
    found = Filter.parse([f"name~={expression}"]).among([fields] * 200_000, lambda each: each, CancelToken())
    with pytest.raises(InvalidInputError, match="more than 1000000000 steps"):
        list(found)


@pytest.mark.parametrize("expression", ["c" * 1100, "\\pL{900}"])
def test_an_expression_that_containerd_could_use_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInputError, match=r"at most|too large"):
        Filter.parse([f'name~="{expression.replace(chr(92), chr(92) * 2)}"'])


def test_filters_are_bounded_together() -> None:
    """Each condition is kept while the request lasts: 15 MiB of them took a gigabyte."""
    Filter.parse(["a" * 256] * 1024)
    with pytest.raises(InvalidInputError, match="filters of 263168 characters"):
        Filter.parse(["a" * 257] * 1024)
