"""The command line as its users meet it: output, exit statuses, one clear line for each failure."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from imagestore import Image
from imagestore.cli.commands import SECTIONS
from imagestore.errors import UnsupportedError
from imagestore.events import Noticed
from imagestore.testing import Entry, RegistryServer, build_image, build_index
from tests.support.node import HYPERV, PROCESS, python_image
from tests.unit.cli.lines import Line

COMMANDS = [name for table in SECTIONS.values() for name in table]


def test_images_lists_a_line_for_each_image_and_handler(line: Line) -> None:
    line("pull", line.python, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV)
    out = line("images").splitlines()
    assert out[0].split("   ")[0] == "IMAGE"
    assert "RUNTIME HANDLER" in out[0]
    assert [HYPERV in out[1], PROCESS in out[2], len(out)] == [True, True, 3]
    assert line("images", "-q", "--runtime-handler", HYPERV).strip() == line.json("images")["images"][0]["id"]


def test_json_that_is_asked_for_is_json_also_when_only_ids_are_wanted(line: Line) -> None:
    line("pull", line.python)
    assert line.json("images", "-q") == line.json("images")
    assert line.json("images", "--quiet", line.python) == line.json("images")


def test_pull_names_image_handler_and_id(line: Line) -> None:
    out = line("pull", line.python)
    assert out.startswith(f"{line.python} ({PROCESS}): sha256:")
    assert "resolved to sha256:" in line.error
    line("pull", "--progress", "none", line.python)
    assert line.error == ""


def test_progress_json_is_one_event_a_line(line: Line) -> None:
    line("pull", line.python, "--progress", "json")
    events = [json.loads(each) for each in line.error.splitlines()]
    assert {"Resolved", "Selected", "BlobStarted", "BlobDone"} <= {each["event"] for each in events}
    assert any(each.get("fetched_bytes", 0) > 0 for each in events)


def test_bars_are_drawn_for_each_blob_that_comes(line: Line) -> None:
    line("pull", line.python, "--progress", "bar")
    assert "resolved to sha256:" in line.error.replace("\n", "")
    shared = python_image().manifests[2].layers[0]
    assert f"layer {shared.digest.short}" in line.error


def test_images_pulled_before_a_failure_are_printed(line: Line) -> None:
    missing = line.server.server.reference("registry.example/library/missing:1")
    out = line("pull", line.python, missing, status=3)
    assert out.startswith(line.python)
    assert len(out.splitlines()) == 1
    assert "not tried" not in line.error
    line("pull", line.python, missing, line.python, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV, status=3)
    assert f"not tried after the failure below: {missing} for {HYPERV}, {line.python} for {PROCESS}, " in line.error


def test_a_dry_run_shows_what_would_come_and_stores_nothing(line: Line) -> None:
    plan = line.json("pull", "-n", line.python, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV)
    assert [each["runtimeHandler"] for each in plan["pulls"]] == [PROCESS, HYPERV]
    assert plan["pulls"][0]["hosts"] == [line.server.address]
    assert plan["bytesToFetch"] == sum(each["bytesToFetch"] for each in plan["pulls"]) == plan["contentBytesAfter"]
    assert "to fetch; the store has 0B" in line("pull", "-n", line.python)
    line("images", status=8)
    line("pull", line.python)
    assert "up to date" in line("pull", "-n", line.python)


def test_a_dry_run_shows_what_was_planned_before_a_failure(line: Line) -> None:
    missing = line.server.server.reference("registry.example/library/missing:1")
    plan = line.json("pull", "-n", line.python, missing, line.python, status=3)
    assert [each["bytesToFetch"] for each in plan["pulls"]] == [plan["bytesToFetch"]]
    assert f"not tried after the failure below: {line.python}\n" in line.error
    assert line("pull", "-n", missing, status=3) == ""


def test_inspecti_shows_layers_as_files(line: Line) -> None:
    line("pull", line.python)
    shown = line.json("inspecti", line.python)
    assert all(Path(layer["path"]).stat().st_size == layer["size"] for layer in shown["layers"])
    assert shown["layers"][0]["diffId"].startswith("sha256:")
    assert shown["platform"] == {
        "os": "windows",
        "architecture": "amd64",
        "os.version": "10.0.20348.1970",
        "text": "windows(10.0.20348.1970)/amd64",
    }
    assert shown["id"] in line("inspecti", line.python)


def test_rmi_and_gc_free_what_no_image_needs(line: Line) -> None:
    line("pull", line.python, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV)
    line("rmi", line.python, "--runtime-handler", HYPERV)
    planned = line.json("gc", "-n")
    assert "would free sha256:" in line("gc", "-n")
    assert line.json("gc") == {**planned, "dryRun": False}
    assert "0B in 0 blobs freed" in line("gc")
    assert "freed" in line("rmi", line.python, "--gc")
    assert line.json("gc")["keptBlobs"] == 0


def test_rmi_for_all_handlers(line: Line) -> None:
    line("pull", line.python, "--runtime-handler", PROCESS, "--runtime-handler", HYPERV)
    removed = line.json("rmi", line.python, "--all-handlers")["removed"]
    assert {each["runtimeHandler"] for each in removed} == {PROCESS, HYPERV}
    assert line.json("images")["images"] == []


@pytest.mark.parametrize("options", [(), ("--gc",)])
def test_rmi_of_what_is_not_there_ends_with_3_and_removes_the_others(line: Line, options: tuple[str, ...]) -> None:
    line("pull", line.python, "--runtime-handler", HYPERV)
    assert line("rmi", "nothing:1", line.python, *options, status=3).startswith(f"removed {line.python} ({HYPERV})\n")
    assert "image 'nothing:1' is not in the store" in line.error
    assert "--ignore-missing" in line.error
    shown = line.json("rmi", "nothing:1", "nothing:2", *options, status=3)
    assert (shown["removed"], shown["missing"]) == ([], ["nothing:1", "nothing:2"])
    assert "images 'nothing:1', 'nothing:2' are not in the store" in line.error
    line("rmi", "nothing", *options, "--runtime-handler", HYPERV, status=3)
    assert f"under runtime handler '{HYPERV}'" in line.error
    assert "means docker.io/library/nothing:latest" in line.error
    line("rmi", "nothing:1", *options, "--ignore-missing")
    assert line.error == ""


def names(line: Line) -> list[tuple[str, str]]:
    return [(each["reference"], each["runtimeHandler"]) for each in line.json("images")["images"]]


@pytest.fixture
def tagged(line: Line) -> Line:
    """One image under two names for one handler, and under one of them for another."""
    line("pull", line.python, "--runtime-handler", HYPERV)
    line("tag", line.python, "further.example/a:1")
    line("pull", line.python)
    return line


@pytest.mark.parametrize("options", [(), ("--gc",)])
def test_rmi_removes_the_name_and_lists_the_others(tagged: Line, options: tuple[str, ...]) -> None:
    told = tagged("rmi", tagged.python, "--runtime-handler", HYPERV, *options)
    assert f"removed {tagged.python} ({HYPERV})\n" in told
    assert f"kept further.example/a:1 ({HYPERV}), another name of the same image\n" in told
    assert names(tagged) == [(tagged.python, PROCESS), ("further.example/a:1", HYPERV)]
    assert tagged.json("check")["faults"] == []
    assert tagged("rmi", "further.example/a:1", *options).startswith(f"removed further.example/a:1 ({HYPERV})\n")
    assert names(tagged) == [(tagged.python, PROCESS)]


@pytest.mark.parametrize("options", [(), ("--gc",)])
def test_rmi_in_json_lists_what_stays(tagged: Line, options: tuple[str, ...]) -> None:
    shown = tagged.json("rmi", "further.example/a:1", *options)
    assert shown["removed"] == [{"reference": "further.example/a:1", "runtimeHandler": HYPERV}]
    assert shown["kept"] == [{"reference": tagged.python, "runtimeHandler": HYPERV}]


@pytest.mark.parametrize("options", [(), ("--gc",)])
@pytest.mark.parametrize("way", ["id", "beginning", "digest", "all names", "both names"])
def test_rmi_removes_every_name_by_an_id_or_with_all_names(tagged: Line, way: str, options: tuple[str, ...]) -> None:
    (image,) = [each for each in tagged.json("images")["images"] if each["reference"] == "further.example/a:1"]
    manifest = image["manifest"]["digest"]
    words = {
        "id": [image["id"]],
        "beginning": [image["id"].removeprefix("sha256:")[:12]],
        "digest": [manifest],
        "all names": ["further.example/a:1", "--all-names"],
        "both names": [tagged.python, "further.example/a:1", "--runtime-handler", HYPERV],
    }
    told = tagged("rmi", *words[way], *options)
    assert told.count("removed") == 2
    assert "kept" not in told
    assert names(tagged) == [(tagged.python, PROCESS)]


@pytest.mark.parametrize("options", [(), ("--gc",)])
def test_rmi_by_a_name_with_a_digest_leaves_other_repositories(tagged: Line, options: tuple[str, ...]) -> None:
    (image,) = [each for each in tagged.json("images")["images"] if each["reference"] == "further.example/a:1"]
    manifest = image["manifest"]["digest"]
    tagged("tag", "further.example/a:1", "further.example/a:2")
    everything = names(tagged)
    wrong = [f"further.example/a:9@{manifest}", f"other.example/a@{manifest}", f"further.example/a:1@sha256:{'0' * 64}"]
    for word in wrong:
        for further in ((), ("--all-handlers",)):
            assert "removed" not in tagged("rmi", word, *options, *further, status=3)
        shown = tagged.json("rmi", word, "--ignore-missing", *options)
        assert (shown["removed"], shown["kept"], shown["missing"]) == ([], [], [word])
    assert names(tagged) == everything
    told = tagged("rmi", f"further.example/a:2@{manifest}", *options)
    assert f"removed further.example/a:2 ({HYPERV})\n" in told
    assert f"kept further.example/a:1 ({HYPERV})" in told
    tagged("tag", "further.example/a:1", "further.example/a:2")
    assert tagged("rmi", f"further.example/a@{manifest}", *options).count("removed") == 2
    assert names(tagged) == [(tagged.python, HYPERV), (tagged.python, PROCESS)]
    assert tagged.json("check")["faults"] == []


def test_a_name_that_an_id_took_along_is_not_missing(tagged: Line) -> None:
    (image,) = [each for each in tagged.json("images")["images"] if each["reference"] == "further.example/a:1"]
    shown = tagged.json("rmi", image["id"], "further.example/a:1")
    assert (len(shown["removed"]), shown["kept"], shown["missing"]) == (2, [], [])


def test_rmi_for_all_handlers_keeps_other_names(tagged: Line) -> None:
    assert tagged("rmi", tagged.python, "--all-handlers").count("removed") == 2
    assert names(tagged) == [("further.example/a:1", HYPERV)]
    tagged("rmi", "further.example/a:1", "--all-handlers", "--all-names")
    assert names(tagged) == []


def test_match_shows_a_matrix_and_the_reasons(line: Line) -> None:
    out = line("match", line.python)
    assert "CHOSEN" in out
    assert "os.version build 20348 ≠ 17763: before build 20348 kernel and image need the exact same build" in out
    answer = line.json("match", line.python, "--runtime-handler", HYPERV)
    (handler,) = answer["handlers"]
    assert handler["chosen"]["platform"]["os.version"] == "10.0.17763.4851"
    assert [entry["rank"] for entry in handler["entries"]] == [None, None, None, 0]
    assert not (line.root / "content" / "blobs" / "sha256").exists() or not list(
        (line.root / "content" / "blobs" / "sha256").iterdir()
    )


def test_match_reads_an_index_from_a_file_without_store_or_network(line: Line, tmp_path: Path) -> None:
    image = python_image()
    path = tmp_path / "index.json"
    path.write_bytes(image.documents[image.target.digest].data)
    before = line.server.ledger.count()
    answer = line.json("match", "--index", str(path), "--runtime-handler", PROCESS)
    assert answer["handlers"][0]["chosen"]["position"] == [2]
    assert line.server.ledger.count() == before
    assert not line.root.exists()
    # Nor one that can be opened.
    line.root.mkdir()
    (line.root / "metadata.db").write_text("no database")
    assert line.json("match", "--index", str(path), "--runtime-handler", PROCESS) == answer


@pytest.mark.parametrize("words", ["inspecti {}", "pin {}", "tag {} other:1", "export {}.tar {}"])
def test_an_error_for_a_name_without_a_tag_says_which_tag_it_means(line: Line, tmp_path: Path, words: str) -> None:
    line("pull", line.python)
    name = line.python.removesuffix(":3")
    line(*words.replace("{}.tar", str(tmp_path / "a.tar")).format(name).split(), status=3)
    assert f"it names no tag and so means {name}:latest" in line.error
    line("inspecti", "0123", status=3)
    assert "latest" not in line.error


def test_an_error_of_standard_input_names_standard_input(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[]")))
    line("match", "--index", "-", status=7)
    assert line.error.startswith("imagestore: standard input: expected a JSON object")


def test_the_matrix_shows_a_platform_that_any_handlers_search_has_read(line: Line, tmp_path: Path) -> None:
    silent = build_index([Entry(build_image("windows(10.0.17763.1)/amd64")), "linux/amd64"])
    with RegistryServer({"registry.example/silent:1": silent}) as server:
        reference = server.server.reference("registry.example/silent:1")
        handlers = [word for name in ("kata", HYPERV) for word in ("--runtime-handler", name)]
        rows = line("match", reference, *handlers).splitlines()
    assert next(row for row in rows if row.startswith("0 ")).split()[1] == "windows(10.0.17763.1)/amd64"


def test_match_offline_uses_the_store(line: Line) -> None:
    line("pull", line.python)
    before = line.server.ledger.count()
    assert line.json("match", "--offline", line.python)["handlers"][0]["chosen"]
    assert line.server.ledger.count() == before
    line("match", "--offline", "registry.example/never:1", status=3)


def test_match_without_a_fit_has_a_status_of_its_own(line: Line) -> None:
    reference = line.server.server.reference("registry.example/library/linux:1")
    out = line("match", reference, "--runtime-handler", PROCESS, status=4)
    assert "takes nothing" in out
    line("match", reference)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("pull", "UPPER"), 2, "position 0"),
        (("pull", "a", "--platform", "///"), 2, "platform"),
        (("pull", "a", "--platform", "linux", "--runtime-handler", "x"), 2, "exclude each other"),
        (("pull", "a", "--runtime-handler", "nonsense"), 9, "known handlers"),
        (("rmi", "a", "--runtime-handler", "nonsense"), 9, "nonsense"),
        (("rmi", "a", "--runtime-handler", "x", "--all-handlers"), 2, "exclude each other"),
        (("inspecti", "a"), 8, "there is no store in"),
        (("match",), 2, "either a REFERENCE or --index"),
        (("match", "--index", "/nowhere.json"), 2, "No such file"),
        (("nonsense",), 2, "No such command"),
        (("pull",), 2, "Missing argument"),
        (("pull", "a", "--deadline", "0"), 124, "within 0 seconds"),
    ],
)
def test_wrong_input_gets_its_status_and_a_clear_line(
    line: Line, arguments: tuple[str, ...], status: int, text: str
) -> None:
    line(*arguments, status=status)
    assert text in line.error
    assert "Traceback" not in line.error


def test_a_missing_tag_has_the_not_found_status(line: Line) -> None:
    line("pull", line.python + "-missing", status=3)


def test_no_match_names_the_offered_platforms_and_a_hint(line: Line) -> None:
    line("pull", line.server.server.reference("registry.example/library/linux:1"), status=4)
    assert "no manifest for windows(10.0.20348)/amd64; offered: linux/amd64" in line.error


def test_malformed_toml_is_named_with_its_line(line: Line) -> None:
    line.config.write_text('version = 3\n[plugins."x"\n')
    line("images", status=9)
    assert f"{line.config}:2" in line.error


def test_a_config_that_is_not_there_is_named(line: Line) -> None:
    line.config.unlink()
    line("images", status=9)
    assert str(line.config) in line.error


@pytest.mark.parametrize("words", ["images", "images -q", "images -o json"])
def test_a_config_that_is_not_there_is_named_whatever_is_printed(line: Line, words: str) -> None:
    line("pull", line.python)
    line.config.unlink()
    line(*words.split(), status=9)
    assert str(line.config) in line.error


def test_a_root_that_cannot_be_written_has_the_store_status(line: Line) -> None:
    line.options[1] = "/sys/imagestore"  # closed even for root
    line("pull", line.python, status=8)
    assert "/sys" in line.error
    assert "--root" in line.error


def test_a_root_below_a_file_has_the_store_status(line: Line, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line.options[1] = str(tmp_path / "file" / "store")
    line("images", status=8)
    assert str(tmp_path / "file") in line.error


def test_a_damaged_database_has_the_store_status_and_keeps_the_content(line: Line) -> None:
    line("pull", line.python)
    blobs = sorted((line.root / "content" / "blobs" / "sha256").iterdir())
    (line.root / "metadata.db").write_bytes(b"garbage" * 1000)
    line("images", status=8)
    assert "metadata.db" in line.error
    assert sorted((line.root / "content" / "blobs" / "sha256").iterdir()) == blobs


def test_control_characters_from_outside_never_reach_the_terminal(line: Line) -> None:
    line("rmi", "a\x1b[31m", status=2)
    assert "\x1b" not in line.error
    assert "\\x1b" in line.error


def test_help_lists_every_command_and_the_exit_statuses(line: Line) -> None:
    out = line("--help")
    assert all(name in out for name in COMMANDS)
    assert "no manifest for the wanted platform" in out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(line: Line, name: str) -> None:
    out = line(name, "--help")
    assert "Usage: imagestore" in out
    assert len(out.splitlines()) > 4


def test_the_quick_list_and_the_whole_store_say_the_same(line: Line) -> None:
    for handler in (PROCESS, HYPERV):
        line("pull", line.python, "--runtime-handler", handler)
    shown = [line("images", *more) for more in ((), ("--no-trunc",), ("-q",))]
    assert len(shown[0].splitlines()) == 3
    # With a condition the store answers; both handlers' lines together are the quick list.
    for whole, *more in zip(shown, ((), ("--no-trunc",), ("-q",)), strict=True):
        lines = [line("images", "--runtime-handler", handler, *more[0]).splitlines() for handler in (PROCESS, HYPERV)]
        assert {each.replace(" ", "") for part in lines for each in part} == {
            each.replace(" ", "") for each in whole.splitlines()
        }


def test_an_image_whose_content_has_no_files_shows_the_digests_of_its_layers(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a shared store, whose content is in a bucket."""

    def refused(_image: Image) -> None:
        raise UnsupportedError("the content is in a bucket")

    line("pull", line.python)
    monkeypatch.setattr(Image, "layer_paths", property(refused))
    layers = line.json("inspecti", line.python)["layers"]
    shown = line("inspecti", line.python)
    assert layers
    assert all(each["digest"] in shown and "path" not in each for each in layers)


def test_an_output_that_cannot_be_written_is_one_line(line: Line) -> None:
    command = f"{sys.executable} -m imagestore --config {line.config} --root {line.root} config default > /dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


def test_a_service_without_standard_error_can_pull(line: Line) -> None:
    command = f"{sys.executable} -m imagestore --config {line.config} --root {line.root} pull {line.python} 2>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert "sha256:" in done.stdout


def test_a_reader_of_progress_that_leaves_does_not_stop_the_pull(line: Line) -> None:
    command = f"{sys.executable} -m imagestore --config {line.config} --root {line.root} pull {line.python}"
    script = f"({command} 3>&1 >/dev/null 2>&3 | true); true"
    subprocess.run(["sh", "-c", script], capture_output=True, check=True, timeout=60)
    assert len(line.json("images")["images"]) == 1


def test_progress_lines_of_many_threads_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from imagestore.cli import progress

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            for character in text:
                super().write(character)
                time.sleep(0)
            return len(text)

    stream = Slow()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.observer("plain") as observer:
        threads = [threading.Thread(target=observer, args=(Noticed("x" * 50),)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert stream.getvalue().splitlines() == ["note: " + "x" * 50] * 20


@pytest.mark.parametrize(
    "arguments",
    [
        ("gc", "--unused-for"),
        ("node", "gc", "--min-age"),
        ("node", "gc", "--max-age"),
        ("leases", "create", "--expires"),
        ("leases", "renew", "mine", "--expires"),
        ("pull", "a", "--deadline"),
        ("serve", "--drain-timeout"),
        ("serve", "--gc-interval"),
    ],
    ids=" ".join,
)
def test_a_duration_without_a_unit_is_refused_before_anything_is_done(line: Line, arguments: tuple[str, ...]) -> None:
    """A user who writes 7 may mean days; seconds would remove everything."""
    line(*arguments, "7", status=2)
    assert "'7': a unit is missing; expected for example 90s, 30m, 12h or 7d" in line.error
    assert not line.root.exists()
    assert "DURATION" in line(*arguments[:-1], "--help")


@pytest.mark.parametrize("deadline", ["nan", "-1"])
def test_a_deadline_that_is_no_time_is_refused(line: Line, deadline: str) -> None:
    line("pull", line.python, "--deadline", deadline, status=2)


def test_handlers_that_differ_by_case_keep_their_spelling(line: Line) -> None:
    line.config.write_text(line.config.read_text() + "\n".join(HANDLERS_BY_CASE))
    heading = line("match", line.python).splitlines()[0].split()
    assert {"hv", "HV"} <= set(heading)


HANDLERS_BY_CASE = (
    '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.hv]',
    'runtime_type = "io.containerd.runc.v2"',
    '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.HV]',
    'runtime_type = "io.containerd.runc.v2"',
)


def test_pull_warns_of_a_misspelt_member_of_the_guest_platform(line: Line) -> None:
    line("pull", line.python, "--runtime-handler", HYPERV)
    assert "warning" not in line.error
    line.config.write_text(line.config.read_text().replace("OSVersion =", "OsVersoin ="))
    line("pull", line.python, "--runtime-handler", HYPERV)
    assert "warning: " in line.error
    assert "OsVersoin" in line.error
