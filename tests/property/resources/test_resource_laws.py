"""Laws of quantities against fractions, and of conversions between neighbours."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import InvalidInputError
from imagestore.resources import cgroup, cpu, oci_spec, windows
from imagestore.resources.cgroup import WeightFormula
from imagestore.resources.cpu import Mapping
from imagestore.resources.linux import container_resources
from imagestore.resources.messages import LinuxContainerResources, WindowsContainerResources
from imagestore.resources.node import CgroupVersion, KubeletSettings, Node
from imagestore.resources.pod import Container, Pod, Requirements, with_defaults
from imagestore.resources.qos import QosClass, qos_class
from imagestore.resources.windows import Isolation
from imagestore.util.quantity import MAXIMUM_BINARY, Format, Quantity, from_json

FACTORS = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
digits = st.text("0123456789", min_size=1, max_size=25)
signs = st.sampled_from(["", "+", "-"])
suffixes = st.sampled_from(list(FACTORS)) | st.builds("{}{}".format, st.sampled_from("eE"), st.integers(-30, 30))
texts = st.builds(
    "{}{}{}{}".format, signs, digits, st.just("") | st.builds(".{}".format, st.just("") | digits), suffixes
)
quantities = texts.map(Quantity.parse)
millis = st.integers(0, 10**9)


def exactly(quantity: Quantity) -> Fraction:
    return quantity.mantissa * Fraction(10) ** quantity.exponent


def away_from_zero(number: Fraction) -> int:
    return math.ceil(number) if number > 0 else math.floor(number)


def expected(text: str) -> Fraction:
    """Read a quantity once more, by fractions."""
    suffix = next((each for each in sorted(FACTORS, key=len, reverse=True) if each and text.endswith(each)), "")
    head = text.removesuffix(suffix)
    power = 0
    for mark in "eE":
        if mark in head:
            head, _, exponent = head.partition(mark)
            power = int(exponent)
    number = Fraction(head.removesuffix(".")) * FACTORS[suffix] * Fraction(10) ** power
    rounded = Fraction(away_from_zero(number * 10**9), 10**9)
    if suffix.endswith("i"):
        rounded = max(Fraction(-MAXIMUM_BINARY), min(rounded, Fraction(MAXIMUM_BINARY)))
    return rounded


@given(texts)
def test_reading_is_exact_to_a_billionth_and_capped_where_it_is_binary(text: str) -> None:
    assert exactly(Quantity.parse(text)) == expected(text)


@given(texts)
def test_the_canonical_text_reads_back_to_itself(text: str) -> None:
    canonical = str(Quantity.parse(text))
    again = Quantity.parse(canonical)
    assert again == Quantity.parse(text)
    assert str(again) == canonical
    assert "." not in canonical
    assert not canonical.startswith("+")


@given(st.text(alphabet="+-.0123456789eEinumkKMGTP Ki", max_size=12) | st.text(max_size=6))
def test_any_text_is_read_or_refused_by_our_own_error(text: str) -> None:
    try:
        found = Quantity.parse(text)
    except InvalidInputError:
        return
    assert Quantity.parse(str(found)) == found


@given(quantities, quantities)
def test_arithmetic_and_order_are_those_of_numbers(left: Quantity, right: Quantity) -> None:
    first, second = exactly(left), exactly(right)
    assert exactly(left + right) == first + second
    assert exactly(left - right) == first - second
    assert left.compare(right) == (first > second) - (first < second)
    assert (hash(left) == hash(right)) or first != second


@given(quantities, st.integers(-12, 12))
def test_scaling_rounds_away_from_zero(quantity: Quantity, scale: int) -> None:
    assert quantity.scaled(scale) == away_from_zero(exactly(quantity) / Fraction(10) ** scale)
    assert exactly(quantity.round_up(scale)) in (
        exactly(quantity),
        away_from_zero(exactly(quantity) / Fraction(10) ** scale) * Fraction(10) ** scale,
    )


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_of_json_are_themselves(number: int) -> None:
    assert from_json(number).value() == from_json(f"\n{number} ").value() == number


@given(millis, millis)
def test_more_cpu_never_means_smaller_numbers(first: int, second: int) -> None:
    low, high = sorted((first, second))
    shares = [cpu.milli_cpu_to_shares(each) for each in (low, high)]
    assert shares == sorted(shares)
    assert 2 <= shares[0] <= shares[1] <= 262144
    for formula in WeightFormula:
        weights = [cgroup.shares_to_weight(each, formula) for each in shares]
        assert 1 <= weights[0] <= weights[1] <= 10000
    for processors in (1, 7, 64):
        maxima = [windows.cpu_maximum(each, processors) for each in (low, high)]
        assert 0 <= maxima[0] <= maxima[1] <= 10000


@given(st.integers(2, 256_000))
def test_shares_read_back_never_exceed_what_was_asked(milli: int) -> None:
    back = cpu.shares_to_milli_cpu(cpu.milli_cpu_to_shares(milli))
    assert milli - 1 <= back <= milli
    assert cpu.milli_cpu_to_shares(back) == cpu.milli_cpu_to_shares(milli)


@given(st.integers(10, 10**6), st.integers(1000, 10**6))
def test_a_quota_read_back_is_the_limit_or_barely_less(milli: int, period: int) -> None:
    quota = cpu.milli_cpu_to_quota(milli, period)
    back = cpu.quota_to_milli_cpu(quota, period)
    assert quota == 1000 or milli - 1 <= back <= milli
    assert cgroup.parse_cpu_max(cgroup.format_cpu_max(quota, period)) == (quota, period)


@given(st.integers(1, 2**62), st.integers(0, 2**61))
def test_swap_of_version_2_and_memory_make_the_limit_of_version_1(memory: int, swap: int) -> None:
    assert cgroup.swap_max(memory + swap, memory) == swap


amounts = st.sampled_from(["0", "1m", "250m", "1", "2", "64Mi", "1Gi", "1500M"]).map(Quantity.parse)
lists = st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage"]), amounts, max_size=3)
containers = st.builds(Container, resources=st.builds(Requirements, lists, lists))
pods = st.builds(Pod, st.lists(containers, min_size=1, max_size=3).map(tuple))
NODE = Node(memory_bytes=2**33, cgroup=CgroupVersion.V1, processors=4)


@given(pods)
def test_defaults_never_change_an_explicit_request_and_are_filled_in_once(pod: Pod) -> None:
    filled = with_defaults(pod)
    assert with_defaults(filled) == filled
    for before, after in zip(pod.containers, filled.containers, strict=True):
        assert set(after.resources.requests) == {*before.resources.requests, *before.resources.limits}
        assert all(after.resources.requests[name] == amount for name, amount in before.resources.requests.items())


@given(pods)
def test_the_score_tells_the_class(pod: Pod) -> None:
    qos = qos_class(pod)
    for container in pod.containers:
        score = container_resources(pod, container, node=NODE, settings=KubeletSettings()).oom_score_adj
        assert (score == -997) == (qos is QosClass.GUARANTEED)
        assert (score == 1000) == (qos is QosClass.BEST_EFFORT)
        assert qos is not QosClass.BURSTABLE or 3 <= score <= 999


@given(pods)
def test_oci_resources_say_what_the_message_says(pod: Pod) -> None:
    message = container_resources(pod, pod.containers[0], node=NODE, settings=KubeletSettings())
    found = oci_spec.linux_resources(message)
    assert found.get("cpu") == {
        name: value
        for name, value in (
            ("period", message.cpu_period),
            ("quota", message.cpu_quota),
            ("shares", message.cpu_shares),
        )
        if value
    }
    assert oci_spec.linux_resources(LinuxContainerResources(), base=found) == found
    assert oci_spec.linux_resources(message, base=found) == found


@given(lists, lists, st.integers(1, 256), st.sampled_from(Mapping), st.sampled_from(Isolation))
def test_windows_numbers_stay_in_their_ranges_and_precedence_leaves_one(
    requests: dict[str, Quantity], limits: dict[str, Quantity], processors: int, mapping: Mapping, isolation: Isolation
) -> None:
    found = windows.container_resources(
        Container(resources=Requirements(requests, limits)),
        node=Node(processors=processors),
        settings=KubeletSettings(mapping=mapping),
        isolation=isolation,
    )
    assert 0 <= found.cpu_shares <= 10000
    assert 0 <= found.cpu_maximum <= 10000
    kept = windows.by_precedence(found, Isolation.PROCESS)
    assert len(windows.exclusive_fields(kept)) <= 1
    assert bool(windows.exclusive_fields(kept)) == bool(windows.exclusive_fields(found))
    assert isinstance(kept, WindowsContainerResources)


@given(st.integers(-(10**30), 10**30), st.integers(-9, 30), st.sampled_from(Format))
def test_every_format_prints_what_reads_back(mantissa: int, exponent: int, format_: Format) -> None:
    quantity = Quantity(mantissa, exponent, format_)
    again = Quantity.parse(str(quantity))
    is_capped = again.format is Format.BINARY_SI and abs(exactly(quantity)) > MAXIMUM_BINARY
    assert again == quantity or is_capped
