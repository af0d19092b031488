"""Metrics have the kubelet's names, labels and buckets."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from imagestore.node.metrics import NodeMetrics, size_bucket

MIB = 1024**2
GIB = 1024**3


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (0, "N/A"),
        (1, "0-10MB"),
        (10 * MIB, "0-10MB"),
        (10 * MIB + 1, "10MB-100MB"),
        (100 * MIB, "10MB-100MB"),
        (100 * MIB + 1, "100MB-500MB"),
        (500 * MIB + 1, "500MB-1GB"),
        (GIB, "500MB-1GB"),
        (GIB + 1, "1GB-5GB"),
        (5 * GIB + 1, "5GB-10GB"),
        (10 * GIB + 1, "10GB-20GB"),
        (20 * GIB + 1, "20GB-30GB"),
        (30 * GIB + 1, "30GB-40GB"),
        (40 * GIB + 1, "40GB-60GB"),
        (60 * GIB + 1, "60GB-100GB"),
        (100 * GIB, "60GB-100GB"),
        (100 * GIB + 1, "GT100GB"),
    ],
)
def test_sizes_fall_into_the_kubelets_buckets(size: int, name: str) -> None:
    assert size_bucket(size) == name


def filled() -> NodeMetrics:
    metrics = NodeMetrics()
    for _ in range(2):
        metrics.ensure_requests.labels("always", "unknown", "true").inc()
    metrics.pull_duration.labels("0-10MB").observe(5)
    metrics.pull_duration.labels("0-10MB").observe(4000)
    metrics.count_handlers({"gone": 1})
    metrics.count_handlers({'odd"\n\\name': 2})
    metrics.pull_intents.set(1)
    metrics.pull_intents.set(3)
    return metrics


def test_text_is_what_prometheus_reads() -> None:
    families = {family.name: family for family in text_string_to_metric_families(filled().text())}
    requests = families["kubelet_image_manager_ensure_image_requests"].samples[0]
    assert requests.labels == {"pull_policy": "always", "present_locally": "unknown", "pull_required": "true"}
    assert requests.value == 2
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in families["kubelet_image_pull_duration_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert (buckets[1], buckets[5], buckets[3600], buckets[math.inf]) == (0, 1, 1, 2)
    (handlers,) = families["kubelet_images_runtime_handler"].samples
    assert (handlers.labels, handlers.value) == ({"runtime_handler": 'odd"\n\\name'}, 2)
    assert families["kubelet_imagemanager_ondisk_pullintents"].samples[0].value == 3


def test_they_are_shown_in_the_registry_that_is_given() -> None:
    registry = CollectorRegistry()
    metrics = NodeMetrics(registry)
    metrics.collected.labels("age").inc()
    metrics.pulled_records.set(40)
    assert registry.get_sample_value("kubelet_image_garbage_collected_total", {"reason": "age"}) == 1
    assert registry.get_sample_value("kubelet_imagemanager_ondisk_pulledrecords") == 40


def test_what_was_not_measured_has_no_number() -> None:
    """A collector of files refuses a number that two of them have."""
    samples = [sample for family in NodeMetrics().registry.collect() for sample in family.samples]
    assert samples == []
