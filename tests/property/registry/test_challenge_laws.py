"""Laws of the challenge parser: it reads back whatever the grammar can write, and never fails in another way."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import ProtocolError
from imagestore.registry.auth.challenge import Challenge, parse_challenges

TOKENS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-._~", min_size=1, max_size=8)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)
PARAMETERS = st.dictionaries(TOKENS, VALUES, max_size=4).map(lambda found: tuple(found.items()))
CHALLENGES = st.one_of(
    st.builds(Challenge, TOKENS, PARAMETERS),
    st.builds(Challenge, TOKENS, st.just(()), st.from_regex(r"[A-Za-z0-9._~+/-]{1,12}={0,2}", fullmatch=True)),
)
SEPARATORS = st.sampled_from([",", ", ", " ,", "\t,\t", ",,", ", , "])
NOISE = st.text('Bb ,="\\=\t\x00a', max_size=40)


def written(challenge: Challenge, separator: str) -> str:
    if challenge.token68:
        return f"{challenge.scheme} {challenge.token68}"
    values = ((name, value.replace("\\", "\\\\").replace('"', '\\"')) for name, value in challenge.params)
    return f"{challenge.scheme} " + separator.join(f'{name}="{value}"' for name, value in values)


@given(st.lists(CHALLENGES, max_size=4), SEPARATORS)
def test_what_is_written_is_read_back(challenges: list[Challenge], separator: str) -> None:
    field = separator.join(written(challenge, separator) for challenge in challenges)
    assert list(parse_challenges([field])) == challenges


@given(st.lists(st.one_of(NOISE, st.text(max_size=30)), max_size=3))
def test_any_text_is_read_or_refused(fields: list[str]) -> None:
    with contextlib.suppress(ProtocolError):
        for challenge in parse_challenges(fields):
            assert challenge.scheme == challenge.scheme.lower() != ""
