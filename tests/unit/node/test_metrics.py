"""Metrics have the kubelet's names, labels and buckets."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
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
    metrics.ensure_requests.add("always", "unknown", "true")
    metrics.ensure_requests.add("always", "unknown", "true")
    metrics.pull_duration.observe(5, "0-10MB")
    metrics.pull_duration.observe(4000, "0-10MB")
    metrics.handler_images.replace({('odd"\n\\name',): 2})
    metrics.pull_intents.set(3)
    return metrics


def test_text_is_what_prometheus_reads() -> None:
    families = {family.name: family for family in text_string_to_metric_families(filled().text())}
    requests = families["kubelet_image_manager_ensure_image_requests"].samples[0]
    assert requests.labels == {"pull_policy": "always", "present_locally": "unknown", "pull_required": "true"}
    assert requests.value == 2
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families["kubelet_image_pull_duration_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert (buckets["1"], buckets["5"], buckets["3600"], buckets["+Inf"]) == (0, 1, 1, 2)
    assert families["kubelet_images_runtime_handler"].samples[0].labels == {"runtime_handler": 'odd"\n\\name'}
    assert families["kubelet_imagemanager_ondisk_pullintents"].samples[0].value == 3


def test_prometheus_clients_registry_shows_the_same() -> None:
    metrics, registry = filled(), CollectorRegistry()
    metrics.register(registry)
    metrics.collected.add("age")
    shown = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }
    ours = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }
    assert shown == ours
    assert shown["kubelet_image_garbage_collected_total", (("reason", "age"),)] == 1


def test_numbers_are_written_in_full() -> None:
    metrics = NodeMetrics()
    metrics.pull_duration.observe(12_345_678.25, "N/A")
    metrics.pull_intents.set(1_234_567)
    text = metrics.text()
    assert 'kubelet_image_pull_duration_seconds_sum{image_size_in_bytes="N/A"} 12345678.25\n' in text
    assert "kubelet_imagemanager_ondisk_pullintents 1234567\n" in text
