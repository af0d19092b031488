"""Pull records as values: their JSON form and how they are merged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.node import pull_records
from imagestore.node.credentials import ServiceAccountSource
from imagestore.node.pull_records import PullCredentials, PulledRecord, RecordedSecret


@pytest.mark.parametrize("time", ["0001-01-02T00:00:00Z", "0999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"])
def test_a_time_far_away_is_written_as_it_was_read(time: str) -> None:
    text = f'{{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"{time}"}}'
    record = pull_records.parse_record(text.encode(), "record")
    written = pull_records.record_json(record)
    assert json.loads(written)["lastUpdatedTime"] == time
    assert pull_records.parse_record(written, "record") == record


def test_the_kubelets_older_records_are_read() -> None:
    text = (
        '{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1",'
        '"lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"test-brokenhash","credentialMapping":'
        '{"docker.io/testing/test":{"kubernetesSecrets":[{"uid":"testsecretuid","namespace":"default",'
        '"name":"pull-secret","credentialHash":""}]}}}'
    )
    record = pull_records.parse_record(text.encode(), "record")
    assert (record.image_ref, record.updated_at) == ("test-brokenhash", 1729513600)
    assert record.credentials["docker.io/testing/test"].secrets[0].coordinates == (
        "default",
        "pull-secret",
        "testsecretuid",
    )


NAMES = st.sampled_from(["a", "b", "c"])
SECRETS = st.builds(RecordedSecret, NAMES, NAMES, NAMES, st.sampled_from(["", "h1", "h2"]))
ACCOUNTS = st.builds(ServiceAccountSource, NAMES, NAMES, NAMES)


def unique(secrets: list[RecordedSecret]) -> tuple[RecordedSecret, ...]:
    return tuple(sorted({each.coordinates: each for each in secrets}.values()))


CREDENTIALS = st.one_of(
    st.just(PullCredentials(is_node_accessible=True)),
    st.lists(SECRETS, min_size=1, max_size=4).map(lambda found: PullCredentials(secrets=unique(found))),
    st.lists(ACCOUNTS, min_size=1, max_size=4).map(
        lambda found: PullCredentials(service_accounts=tuple(sorted(set(found))))
    ),
)


@given(CREDENTIALS, CREDENTIALS)
def test_merging_keeps_what_was_proved(old: PullCredentials, new: PullCredentials) -> None:
    merged = old.merged(new)
    assert merged.merged(new) == merged
    if old.is_node_accessible or new.is_node_accessible:
        assert merged == PullCredentials(is_node_accessible=True)
        return
    assert {each.coordinates for each in merged.secrets} >= {each.coordinates for each in (*old.secrets, *new.secrets)}
    assert set(new.secrets) <= set(merged.secrets)
    assert set(merged.service_accounts) == {*old.service_accounts, *new.service_accounts}
    assert list(merged.secrets) == sorted(merged.secrets)


@given(st.dictionaries(NAMES, CREDENTIALS), st.integers(0, 4_000_000_000))
def test_records_survive_their_file_form(mapping: dict[str, PullCredentials], moment: int) -> None:
    record = PulledRecord("ref", moment, mapping)
    assert pull_records.parse_record(pull_records.record_json(record), "record") == record
