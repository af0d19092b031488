"""Every deliberate difference from containerd in matching platforms and choosing manifests, in one place.

Compared are containerd's platform library (containerd/platforms 1.0.0-rc.5), its way of reading an image with a matcher
(core/images) and what its CRI plugin makes of a runtime handler. Anything that differs and isn't listed here is a
fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing we do otherwise on purpose.

    Attributes:
        identifier: short name.
        upstream: what containerd does.
        here: what we do.
        because: why.
        test: node of the test that holds it, relative to ``tests/unit``.
    """

    identifier: str
    upstream: str
    here: str
    because: str
    test: str


DIFFERENCES: Final = (
    Difference(
        identifier="windows-order",
        upstream="among matching Windows entries the greater os.version as text comes first",
        here="nearest build, then the wanted revision, then the highest below it, then the highest, all as numbers; "
        "then unreadable versions, then entries without one",
        because="as text 10.0.20348.999 beats 10.0.20348.1970, so that users get an image years old",
        test="platforms/test_differences.py::test_windows_versions_are_ordered_as_numbers",
    ),
    Difference(
        identifier="dot-parts",
        upstream="the text form is joined like a file path: a part '.' vanishes, '..' takes the part before it along",
        here="parts are joined with slashes and nothing else happens to dots",
        because="the text must name the platform it was made from",
        test="platforms/test_differences.py::test_dot_parts_stay_in_the_text_form",
    ),
    Difference(
        identifier="short-machine-name",
        upstream="ARM detection crashes on a machine name shorter than four letters",
        here="the variant stays empty, as for other names that tell nothing",
        because="a crash helps no one",
        test="platforms/test_differences.py::test_short_machine_name_leaves_the_variant_empty",
    ),
    Difference(
        identifier="counted-levels",
        upstream="Only lists every level below the wanted one, so that amd64/v999999999 exhausts memory",
        here="levels are counted; the answers are the same",
        because="platforms come from documents and command lines",
        test="platforms/test_differences.py::test_huge_level_costs_nothing",
    ),
    Difference(
        identifier="unreadable-versions",
        upstream="a Windows host or platform whose version can't be read takes every build",
        here="it is refused before anything is chosen for it; only a bare matcher still takes everything, and says so",
        because="a slip of the pen must not choose images that can't run",
        test="config/test_handlers.py::test_an_unreadable_version_of_the_host_is_refused_whatever_decides_the_platform",
    ),
    Difference(
        identifier="declared-platforms",
        upstream="guest_platform isn't known, and the platform of runtime_platforms isn't used: the host's counts",
        here="a handler's declared platform replaces the host's",
        because="KEP-4216 asks for it",
        test="config/test_handlers.py::test_runtime_platforms_declare_a_platform",
    ),
    Difference(
        identifier="unknown-handlers",
        upstream="an unknown runtime handler silently gets what the default one gets",
        here="it is refused, with the known ones",
        because="KEP-4216 asks for it, and the pod could not start anyway",
        test="config/test_handler_keys.py::test_an_unknown_handler_is_refused_with_the_known_ones",
    ),
    Difference(
        identifier="one-matcher",
        upstream="a CRI pull fetches every manifest of the host's very platform, and reading the image then takes "
        "fallbacks too: a node for which there is only a fallback fetches nothing",
        here="one matcher chooses, for pulls and for reading: the default one of the wanted platform",
        because="what is fetched is what runs, and nothing else needs to be fetched",
        test="oci/test_select.py::test_a_node_gets_a_fallback_where_there_is_nothing_better",
    ),
    Difference(
        identifier="next-best",
        upstream="of the fitting entries only the best is looked at: an index inside the index that holds nothing that "
        "fits is the end",
        here="the next best is tried",
        because="an index that promises more than it holds must not hide the manifest next to it",
        test="oci/test_select_nested.py::test_where_the_best_index_holds_nothing_that_fits_the_next_entry_is_tried",
    ),
    Difference(
        identifier="several-configs",
        upstream="of several entries without platform only the first is looked into",
        here="they are tried in the order of the index, manifests by their configs, indexes by their entries",
        because="indexes without any platform exist, with one manifest for each",
        test="oci/test_select_nested.py::test_platformless_entries_have_their_turn_in_the_order_of_the_index",
    ),
    Difference(
        identifier="versions-by-config",
        upstream="a Windows entry that states no version fits every build, and is taken",
        here="where a handler declares its platform, the version in such an entry's config decides; if it doesn't "
        "fit, the next entry is tried, and one whose config isn't at hand comes last",
        because="the guest could not run it",
        test="oci/test_select.py::test_a_version_that_only_the_config_has_decides_where_that_is_asked_for",
    ),
    Difference(
        identifier="bounds",
        upstream="indexes may nest and list as much as they like",
        here="4 levels, 64 indexes, 10,000 entries and 16 configs are looked at, counting what has to be opened",
        because="documents come from strangers, and each look may cost a request",
        test="oci/test_select_nested.py::test_indexes_nest_four_deep_and_no_deeper",
    ),
    Difference(
        identifier="missing-documents",
        upstream="a config or inner index that isn't in the store ends the reading of the image",
        here="without a registry to ask, its entry is ruled out and the next one tried",
        because="a store holds of an index only what its handlers needed",
        test="oci/test_select.py::test_an_entry_whose_document_is_missing_is_ruled_out_and_the_next_one_tried",
    ),
    Difference(
        identifier="attestations",
        upstream="attestations and other entries of unknown platforms fit a matcher that takes everything",
        here="they are never chosen, whatever the matcher",
        because="they are no images",
        test="oci/test_select.py::test_attestations_and_unknown_platforms_are_never_chosen",
    ),
    Difference(
        identifier="other-media-types",
        upstream="an entry that fits but leads to neither manifest nor index is an error when it is the best",
        here="it is never chosen, and the next one tried",
        because="newer kinds of entries must not break older readers",
        test="oci/test_select.py::test_entries_that_are_neither_manifest_nor_index_are_refused",
    ),
    Difference(
        identifier="strict-documents",
        upstream="members of documents are read in any case, the last of two with one name counts, and what is missing "
        "is empty or zero",
        here="a document that readers could see differently is refused, and so is one beyond the bounds or without "
        "what an image needs",
        because="two readers must not see two images in one document",
        test="oci/test_decode.py::test_ambiguous_or_unbounded_json_is_refused",
    ),
    Difference(
        identifier="single-manifests",
        upstream="a reference that leads straight to a manifest is taken unseen",
        here="its config is judged: an error where the handler declares a platform, else a warning on the record",
        because="the container would fail with a message that names neither platform",
        test="oci/test_select.py::test_single_manifest_that_does_not_fit_is_not_chosen",
    ),
)
