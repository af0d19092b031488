"""Archives exchanged with skopeo and with a private containerd: every digest stays, in both directions."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import Digest, ExportOptions, ImportOptions
from imagestore.errors import ContentNotFoundError, DocumentError
from imagestore.oci import layout
from imagestore.store.archive.contents import ArchiveFormat
from imagestore.store.archive.exporting import ExportShape
from imagestore.testing import build_image, build_index, layer
from tests.support.node import HYPERV, PLATFORMS, PYTHON, Node, node, python_image
from tests.support.peers import need
from tests.support.private_containerd import Containerd, private_containerd
from tests.unit.store.archive.making import layout_files, saved_files, write

pytestmark = pytest.mark.integration

KATA = ImportOptions(("kata",))
EVERY = ImportOptions(("kata",), all_platforms=True)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    with private_containerd(tmp_path_factory.mktemp("containerd")) as started:
        yield started


@pytest.fixture
def containerd(running: Containerd) -> Iterator[Containerd]:
    yield running
    running.clear()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path / "store") as opened:
        yield opened


def whole(here: Node, folder: Path) -> list[str]:
    """Have python with all its platforms in the store; all its digests."""
    image = python_image()
    here.store.import_images(write(folder / "whole.tar", layout_files({PYTHON: image})), options=EVERY)
    return sorted(str(digest) for digest in (*image.documents, *image.blobs))


def skopeo(*arguments: str) -> bytes:
    done = subprocess.run([need("skopeo"), *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def files_of(path: Path) -> dict[str, bytes]:
    with tarfile.open(path, "r:") as archive:
        return {each.name: archive.extractfile(each).read() for each in archive if each.isfile()}  # type: ignore[union-attr]


def test_containerd_takes_all_platforms_and_gives_them_back(here: Node, containerd: Containerd, tmp_path: Path) -> None:
    digests = whole(here, tmp_path)
    ours, theirs = tmp_path / "ours.tar", tmp_path / "theirs.tar"
    here.store.export_images([PYTHON], ours, options=ExportOptions(("kata",), all_platforms=True))
    containerd.ctr("images", "import", "--no-unpack", "--all-platforms", str(ours))
    assert containerd.images() == {PYTHON: str(python_image().target.digest)}
    assert containerd.blobs() >= set(digests)
    containerd.ctr("images", "export", "--all-platforms", str(theirs), PYTHON)
    with node(tmp_path / "other") as other:
        (back,) = other.store.import_images(theirs, options=EVERY).images
        assert (back.reference, back.target) == (PYTHON, python_image().target)
        assert sorted(str(info.digest) for info in other.store.content.walk()) == digests


def test_our_layout_has_the_members_of_containerds(here: Node, containerd: Containerd, tmp_path: Path) -> None:
    whole(here, tmp_path)
    ours, theirs = tmp_path / "ours.tar", tmp_path / "theirs.tar"
    here.store.export_images([PYTHON], ours, options=ExportOptions(("kata",), all_platforms=True))
    containerd.ctr("images", "import", "--no-unpack", "--all-platforms", str(ours))
    containerd.ctr("images", "export", "--all-platforms", str(theirs), PYTHON)
    mine, other = files_of(ours), files_of(theirs)
    assert mine.keys() == other.keys()
    blobs = [name for name in mine if name.startswith("blobs/")]
    assert [mine[name] for name in blobs] == [other[name] for name in blobs]
    entries = [json.loads(files[layout.INDEX])["manifests"][0] for files in (mine, other)]
    for key in ("mediaType", "digest", "size"):
        assert entries[0][key] == entries[1][key]
    assert entries[0]["annotations"].items() <= entries[1]["annotations"].items()


@pytest.mark.parametrize("shape", list(ExportShape))
def test_containerd_takes_one_handlers_image(
    here: Node, containerd: Containerd, tmp_path: Path, shape: ExportShape
) -> None:
    image = here.store.pull(PYTHON, runtime_handler="kata")
    here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions(("kata",), shape=shape))
    containerd.ctr("images", "import", "--no-unpack", "--platform", "linux/amd64", str(tmp_path / "a.tar"))
    target = image.target if shape is ExportShape.INDEX else image.manifest
    assert containerd.images() == {PYTHON: str(target.digest)}
    needed = {str(each) for each in (image.manifest.digest, image.id, *(layer.digest for layer in image.layers))}
    assert needed <= containerd.blobs()
    # And back, sparse as it is.
    containerd.ctr("images", "export", "--platform", "linux/amd64", str(tmp_path / "b.tar"), PYTHON)
    with node(tmp_path / "other") as other:
        (back,) = other.store.import_images(tmp_path / "b.tar", options=KATA).images
        assert (back.target.digest, back.id) == (target.digest, image.id)


def test_a_partial_export_of_containerd_says_what_is_missing(
    here: Node, containerd: Containerd, tmp_path: Path
) -> None:
    whole(here, tmp_path)
    containerd.ctr("images", "import", "--no-unpack", "--platform", "linux/amd64", str(tmp_path / "whole.tar"))
    containerd.ctr("images", "export", "--platform", "linux/amd64", str(tmp_path / "part.tar"), PYTHON)
    with node(tmp_path / "other") as other:
        assert other.store.import_images(tmp_path / "part.tar", options=KATA).images
        with pytest.raises(ContentNotFoundError, match=r"10\.0\.17763"):
            other.store.import_images(tmp_path / "part.tar", options=ImportOptions((HYPERV,)))


def test_a_docker_archive_makes_the_same_manifest_here_and_in_containerd(
    here: Node, containerd: Containerd, tmp_path: Path
) -> None:
    layers = [layer("one", compression="none"), layer("two", compression="none")]
    image = build_image("linux/amd64", layers=layers, family="docker")
    archive = write(tmp_path / "saved.tar", saved_files(image, layers, ["docker.io/library/saved:1"]))
    containerd.ctr("images", "import", "--no-unpack", str(archive))
    (ours,) = here.store.import_images(archive, options=KATA).images
    assert containerd.images() == {ours.reference: str(ours.target.digest)}


def test_containerd_reads_our_docker_archive(here: Node, containerd: Containerd, tmp_path: Path) -> None:
    image = here.store.pull(PYTHON, runtime_handler="kata")
    options = ExportOptions(("kata",), format=ArchiveFormat.DOCKER_ARCHIVE)
    here.store.export_images([PYTHON], tmp_path / "a.tar", options=options)
    containerd.ctr("images", "import", "--no-unpack", str(tmp_path / "a.tar"))
    assert set(containerd.images()) == {PYTHON}
    assert {str(image.id), *map(str, image.config.diff_ids)} <= containerd.blobs()


@pytest.mark.parametrize(
    ("form", "transport"), [(ArchiveFormat.OCI_ARCHIVE, "oci-archive"), (ArchiveFormat.OCI_FOLDER, "oci")]
)
def test_skopeo_copies_all_platforms_and_back(here: Node, tmp_path: Path, form: ArchiveFormat, transport: str) -> None:
    digests = whole(here, tmp_path)
    options = ExportOptions(("kata",), all_platforms=True, format=form)
    here.store.export_images([PYTHON], tmp_path / "ours", options=options)
    source = f"{transport}:{tmp_path / 'ours'}:3"
    assert Digest.of(skopeo("inspect", "--raw", source)) == python_image().target.digest
    skopeo("copy", "--all", source, f"{transport}:{tmp_path / 'theirs'}:{PYTHON}")
    with node(tmp_path / "other") as other:
        (back,) = other.store.import_images(tmp_path / "theirs", options=EVERY).images
        assert (back.reference, back.target) == (PYTHON, python_image().target)
        assert sorted(str(info.digest) for info in other.store.content.walk()) == digests


@pytest.mark.parametrize("shape", list(ExportShape))
def test_skopeo_takes_one_handlers_image(here: Node, tmp_path: Path, shape: ExportShape) -> None:
    image = here.store.pull(PYTHON, runtime_handler=HYPERV)
    here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions((HYPERV,), shape=shape))
    windows = ("--override-os", "windows", "--override-arch", "amd64")
    if shape is ExportShape.INDEX:
        # skopeo can't ask for a Windows build, and this index begins with another one, which isn't in the archive.
        raw = skopeo("inspect", "--raw", f"oci-archive:{tmp_path / 'a.tar'}")
        assert Digest.of(raw) == image.target.digest
        return
    skopeo(*windows, "copy", f"oci-archive:{tmp_path / 'a.tar'}", f"oci:{tmp_path / 'copy'}:x")
    found = json.loads((tmp_path / "copy" / layout.INDEX).read_text())["manifests"][0]
    assert found["digest"] == str(image.manifest.digest)


def test_skopeo_takes_a_sparse_index_for_its_own_platform(here: Node, tmp_path: Path) -> None:
    image = here.store.pull(PYTHON, runtime_handler="kata")
    here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions(("kata",)))
    linux = ("--override-os", "linux", "--override-arch", "amd64")
    skopeo(*linux, "copy", f"oci-archive:{tmp_path / 'a.tar'}", f"oci:{tmp_path / 'copy'}:x")
    found = json.loads((tmp_path / "copy" / layout.INDEX).read_text())["manifests"][0]
    assert found["digest"] == str(image.manifest.digest)


def test_skopeo_and_we_read_each_others_docker_archives(here: Node, tmp_path: Path) -> None:
    image = here.store.pull(PYTHON, runtime_handler="kata")
    options = ExportOptions(("kata",), format=ArchiveFormat.DOCKER_ARCHIVE)
    here.store.export_images([PYTHON], tmp_path / "ours.tar", options=options)
    skopeo("copy", f"docker-archive:{tmp_path / 'ours.tar'}", f"docker-archive:{tmp_path / 'theirs.tar'}:{PYTHON}")
    with tarfile.open(tmp_path / "theirs.tar", "r:") as archive:
        assert any(each.issym() for each in archive), "this skopeo no longer writes links; the test needs another peer"
    with node(tmp_path / "other") as other:
        (back,) = other.store.import_images(tmp_path / "theirs.tar", options=KATA).images
        assert (back.reference, back.id) == (PYTHON, image.id)
        assert [each.digest for each in back.layers] == list(image.config.diff_ids)


def test_an_index_of_docker_keeps_its_digests_too(here: Node, containerd: Containerd, tmp_path: Path) -> None:
    image = build_index(PLATFORMS, family="docker")
    here.store.import_images(write(tmp_path / "in.tar", layout_files({"a:1": image})), options=EVERY)
    options = ExportOptions(("kata",), all_platforms=True)
    here.store.export_images(["a:1"], tmp_path / "a.tar", options=options)
    containerd.ctr("images", "import", "--no-unpack", "--all-platforms", str(tmp_path / "a.tar"))
    assert containerd.images() == {"docker.io/library/a:1": str(image.target.digest)}


SPARSE_FORMS = ["--format=gnu", *(f"--format=posix --sparse-version={version}" for version in ("0.0", "0.1", "1.0"))]


@pytest.mark.parametrize("form", SPARSE_FORMS)
def test_sparse_members_of_gnu_tar_are_read(here: Node, tmp_path: Path, form: str) -> None:
    """A layer with holes, in an archive that 'tar -S' packed."""
    holes = layer("holes", compression="none", files={"zeros": bytes(1 << 20), "end": b"end"})
    image = build_image("linux/amd64", layers=[holes], family="docker")
    files = saved_files(image, [holes], ["a:1"])
    folder = tmp_path / "files"
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with open(folder / name, "wb") as file:
            for at in range(0, len(data), 4096):
                # Blocks of zeros become holes.
                file.seek(at)
                if data[at : at + 4096].strip(b"\0"):
                    file.write(data[at : at + 4096])
            file.truncate(len(data))
    archive = tmp_path / "a.tar"
    command = [need("tar"), "--sparse", *form.split(), "-cf", str(archive), "-C", str(folder), *files]
    subprocess.run(command, check=True, timeout=60)
    assert archive.stat().st_size < 200_000, "tar found no holes, so the test shows nothing"
    (back,) = here.store.import_images(archive, options=KATA).images
    assert [path.read_bytes() for path in back.layer_paths] == [b"".join(holes.body.chunks())]


@pytest.mark.parametrize(("program", "packing"), [("gzip", "-k"), ("bzip2", "-k"), ("xz", "-k"), ("zstd", "-q")])
def test_archives_that_skopeo_wrote_are_read_compressed(here: Node, tmp_path: Path, program: str, packing: str) -> None:
    image = here.store.pull(PYTHON, runtime_handler="kata")
    here.store.export_images([PYTHON], tmp_path / "ours.tar", options=ExportOptions(("kata",)))
    skopeo("copy", f"oci-archive:{tmp_path / 'ours.tar'}", f"docker-archive:{tmp_path / 'theirs.tar'}:{PYTHON}")
    subprocess.run([need(program), packing, str(tmp_path / "theirs.tar")], check=True, timeout=60)
    (packed,) = tmp_path.glob("theirs.tar.*")
    with node(tmp_path / "other") as other:
        (back,) = other.store.import_images(packed, options=KATA).images
        assert (back.reference, back.id) == (PYTHON, image.id)


def test_a_folder_that_skopeo_wrote_for_itself_is_named(here: Node, tmp_path: Path) -> None:
    here.store.pull(PYTHON, runtime_handler="kata")
    here.store.export_images([PYTHON], tmp_path / "ours.tar", options=ExportOptions(("kata",)))
    skopeo("copy", f"oci-archive:{tmp_path / 'ours.tar'}", f"dir:{tmp_path / 'copied'}")
    with pytest.raises(DocumentError, match="skopeo copy") as caught:
        here.store.import_images(tmp_path / "copied", options=KATA)
    assert "oci-archive" in caught.value.hint
