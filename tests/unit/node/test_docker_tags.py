"""Runtime handlers on a Docker Engine: whatever ends a handler's pull, a tag means what it meant before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from imagestore import CancelToken, platforms
from imagestore.cri import ImageSpec
from imagestore.errors import (
    AccessDeniedError,
    ImageServiceError,
    ImageStoreError,
    OperationCancelledError,
    ReferenceNotFoundError,
    StoreError,
    StoreFullError,
)
from imagestore.node.docker import handler_table
from imagestore.node.docker.handler_table import HandlerTable
from imagestore.node.docker.service import DockerImageService
from tests.support.docker_engine import Engine, docker_engine, id_of
from tests.support.patience import until

APP = "registry.example/team/app"
TAG = f"{APP}:1"
AMD, ARM = id_of("content", "linux/amd64"), id_of("content", "linux/arm64")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Somebody pulled the tag there; nobody knows it here."""
    running = Engine({APP: {"1": "content"}})
    running.ids[AMD] = id_of("index", "content")
    running.tags[TAG] = AMD
    with docker_engine(tmp_path / "s", running):
        yield running


@pytest.fixture
def service(engine: Engine, tmp_path: Path) -> Iterator[Callable[[], DockerImageService]]:
    """Makes services that share a table, as commands do."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(
            closing(
                DockerImageService(
                    str(tmp_path / "s"),
                    platforms={"arm": platforms.parse("linux/arm64")},
                    table=HandlerTable(tmp_path / "state" / "table.json"),
                )
            )
        )


def found(service: DockerImageService, handler: str = "") -> str | None:
    status = service.status(ImageSpec(TAG, handler))
    return status.id if status is not None else None


def die_in_a_pull(service: DockerImageService, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler's pull ends when the engine has the image, and nothing comes after that."""

    put = HandlerTable.put

    def killed_at_last(table: HandlerTable, reference: str, handler: str, image_id: str) -> None:
        if handler:
            raise SystemExit
        put(table, reference, handler, image_id)

    with monkeypatch.context() as patch:
        patch.setattr(HandlerTable, "put", killed_at_last)
        with pytest.raises(SystemExit):
            service.pull(ImageSpec(TAG, "arm"))


def test_a_pull_that_cant_be_noted_leaves_the_tag(
    engine: Engine, service: Callable[[], DockerImageService], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, put = service(), HandlerTable.put

    def full(table: HandlerTable, reference: str, handler: str, image_id: str) -> None:
        if handler:
            raise StoreFullError("no space left on device")
        put(table, reference, handler, image_id)

    with monkeypatch.context() as patch:
        patch.setattr(HandlerTable, "put", full)
        with pytest.raises(StoreFullError):
            one.pull(ImageSpec(TAG, "arm"))
    assert engine.tags[TAG] == AMD
    for each in (one, service()):
        assert (found(each), found(each, "arm")) == (AMD, None)
    assert service().pull(ImageSpec(TAG, "arm")) == ARM
    assert (engine.tags[TAG], found(service()), found(service(), "arm")) == (AMD, AMD, ARM)


def test_what_cant_be_noted_before_a_pull_is_not_pulled(
    engine: Engine, service: Callable[[], DockerImageService], tmp_path: Path
) -> None:
    one = service()
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(StoreError, match=r"table\.json"):
        one.pull(ImageSpec(TAG, "arm"))
    assert not any(path.endswith("/images/create") for _, path, _, _ in engine.requests)


@pytest.mark.parametrize(("handler", "image"), [("arm", ARM), ("", AMD)])
def test_a_process_that_dies_leaves_the_tags_meaning(
    engine: Engine,
    service: Callable[[], DockerImageService],
    monkeypatch: pytest.MonkeyPatch,
    handler: str,
    image: str,
) -> None:
    die_in_a_pull(service(), monkeypatch)
    assert (engine.tags[TAG], ARM in engine.ids) == (AMD, True)
    assert found(service()) == AMD
    assert service().pull(ImageSpec(TAG, handler)) == image
    assert (engine.tags[TAG], found(service())) == (AMD, AMD)


def created(engine: Engine) -> list[str]:
    return [query["tag"] for _, path, query, _ in engine.requests if path.endswith("/images/create")]


@pytest.mark.parametrize("has_digest", [False, True])
def test_a_handlers_pull_never_moves_a_tag(
    engine: Engine, service: Callable[[], DockerImageService], has_digest: bool
) -> None:
    digest = id_of("index", "content")
    if has_digest:
        engine.digests[f"{APP}@{digest}"] = AMD
    one = service()
    assert one.pull(ImageSpec(TAG, "arm")) == ARM
    assert set(created(engine)) == {digest}
    assert (engine.tags, engine.digests) == ({TAG: AMD}, {f"{APP}@{digest}": ARM})
    assert (found(one), found(one, "arm")) == (AMD, ARM)


BUILT = id_of("built here")


def build(engine: Engine) -> None:
    """The user gives the tag to an image of his own."""
    engine.ids[BUILT], engine.tags[TAG] = id_of("index", "built here"), BUILT


@pytest.mark.parametrize("is_there_before", [True, False])
def test_a_tag_that_the_user_sets_during_a_handlers_pull_stays(
    engine: Engine, service: Callable[[], DockerImageService], is_there_before: bool
) -> None:
    if not is_there_before:
        engine.tags.clear()
    engine.on_stream = lambda: build(engine)
    one = service()
    assert one.pull(ImageSpec(TAG, "arm")) == ARM
    assert engine.tags == {TAG: BUILT}
    assert found(one, "arm") == ARM
    # The default handler's is what the tag meant when the pull began, else what the user gave it meanwhile.
    assert found(service()) == (AMD if is_there_before else BUILT)


def test_a_tag_that_nobody_has_is_given_to_the_handlers_image(
    engine: Engine, service: Callable[[], DockerImageService]
) -> None:
    engine.tags.clear()
    one = service()
    assert one.pull(ImageSpec(TAG, "arm")) == ARM
    assert (engine.tags, set(created(engine))) == ({TAG: ARM}, {id_of("index", "content")})
    assert (found(service()), found(service(), "arm")) == (None, ARM)
    assert one.pull(ImageSpec(TAG)) == AMD
    assert (engine.tags, found(service()), found(service(), "arm")) == ({TAG: AMD}, AMD, ARM)


def test_a_process_that_dies_before_it_tags_leaves_no_tag_of_the_default(
    engine: Engine, service: Callable[[], DockerImageService]
) -> None:
    engine.tags.clear()
    engine.answers[f"/images/{ARM}/tag"] = (500, b'{"message":"gone"}')
    with pytest.raises(ImageServiceError, match="app:1: tag: gone"):
        service().pull(ImageSpec(TAG, "arm"))
    assert (engine.tags, found(service()), found(service(), "arm")) == ({}, None, ARM)
    engine.answers.clear()
    assert service().pull(ImageSpec(TAG, "arm")) == ARM
    assert engine.tags == {TAG: ARM}


@pytest.mark.parametrize("handler", ["", "arm"])
@pytest.mark.parametrize("has_tag", [True, False])
@pytest.mark.parametrize(
    "stream",
    [
        b'{"status":"Downloading","id":"a"}\r\n{"errorDetail":{"message":"unexpected EOF"}}\r\n',
        b'{"status":"Downloading","id":"a"}\r\n{"sta',
        b"",
    ],
    ids=["told", "cut", "closed"],
)
def test_a_pull_that_fails_midway_moves_no_tag(
    engine: Engine, service: Callable[[], DockerImageService], stream: bytes, has_tag: bool, handler: str
) -> None:
    if has_tag:
        build(engine)
    else:
        engine.tags.clear()
    before = dict(engine.tags)
    engine.stream = (200, stream)
    with pytest.raises(ImageServiceError):
        service().pull(ImageSpec(TAG, handler))
    assert (engine.tags, found(service())) == (before, BUILT if has_tag else None)


def test_a_second_try_that_fails_moves_no_tag(engine: Engine, service: Callable[[], DockerImageService]) -> None:
    named = f"{APP}@{id_of('index', 'content')}"
    engine.digests[named] = AMD

    def fail_once_the_name_is_free() -> None:
        engine.stream = None if named in engine.digests else (200, b"")

    engine.on_stream = fail_once_the_name_is_free
    with pytest.raises(ImageServiceError):
        service().pull(ImageSpec(TAG, "arm"))
    assert (len(created(engine)), engine.tags, found(service())) == (2, {TAG: AMD}, AMD)


@pytest.mark.parametrize("has_tag", [True, False])
def test_a_cancelled_pull_moves_no_tag_even_if_the_engine_ends_it(
    engine: Engine, service: Callable[[], DockerImageService], has_tag: bool
) -> None:
    if has_tag:
        build(engine)
    else:
        engine.tags.clear()
    token, is_over, before = CancelToken(), threading.Event(), dict(engine.tags)

    def cancelled_midway() -> None:
        token.cancel("enough")
        is_over.wait(60)

    engine.on_stream = cancelled_midway
    with pytest.raises(OperationCancelledError):
        service().pull(ImageSpec(TAG, "arm"), cancel=token)
    is_over.set()
    until(lambda: ARM in engine.ids, "the engine has the image")
    assert (engine.tags, found(service())) == (before, BUILT if has_tag else None)


def test_an_image_that_loses_its_only_name_to_another_handler_is_kept(engine: Engine, tmp_path: Path) -> None:
    handlers = {"arm": platforms.parse("linux/arm64"), "old": platforms.parse("linux/arm/v7")}
    with closing(DockerImageService(str(tmp_path / "s"), platforms=handlers)) as one:
        ids = [one.pull(ImageSpec(TAG, handler)) for handler in ("", "arm", "old")]
        assert [found(one, handler) for handler in ("", "arm", "old")] == ids
        assert set(engine.ids) == set(ids)
        assert engine.tags == {TAG: AMD, f"{APP}:imagestore-{ARM.removeprefix('sha256:')[:12]}": ARM}
        one.remove(ImageSpec(TAG, "arm"))
        assert engine.tags == {TAG: AMD}


def test_a_local_image_of_the_same_name_keeps_its_tag(
    engine: Engine, service: Callable[[], DockerImageService]
) -> None:
    build(engine)
    assert service().pull(ImageSpec(TAG, "arm")) == ARM
    assert (engine.tags[TAG], found(service()), found(service(), "arm")) == (BUILT, BUILT, ARM)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (403, b'{"message":"denied"}', AccessDeniedError),
        (404, b'{"message":"manifest unknown"}', ReferenceNotFoundError),
        (500, b'{"message":"busy"}', ImageServiceError),
        (200, b"{}", ImageServiceError),
        (200, b'{"Descriptor":{"digest":"latest"}}', ImageServiceError),
    ],
)
def test_a_tag_whose_digest_is_not_known_is_not_pulled(
    engine: Engine,
    service: Callable[[], DockerImageService],
    status: int,
    body: bytes,
    kind: type[ImageStoreError],
) -> None:
    engine.answers[f"/distribution/{TAG}/json"] = (status, body)
    with pytest.raises(kind):
        service().pull(ImageSpec(TAG, "arm"))
    assert (created(engine), engine.tags) == ([], {TAG: AMD})


def test_another_failure_takes_no_name_from_an_image(engine: Engine, service: Callable[[], DockerImageService]) -> None:
    named = f"{APP}@{id_of('index', 'content')}"
    engine.digests[named] = AMD
    engine.stream = (200, b'{"errorDetail":{"message":"no space left on device"}}')
    with pytest.raises(ImageServiceError, match="no space left"):
        service().pull(ImageSpec(TAG, "arm"))
    assert (len(created(engine)), engine.digests) == (1, {named: AMD})


def test_commands_may_share_a_table(tmp_path: Path) -> None:
    def work(number: int) -> None:
        table = HandlerTable(tmp_path / "table.json")
        for each in range(25):
            table.put(f"registry.example/{number}:{each}", "arm", f"sha256:{number}")
            table.put(f"registry.example/{number}:{each}", "", "sha256:shared")
            if each % 2:
                table.forget(f"sha256:{number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = HandlerTable(tmp_path / "table.json")
    for number in range(3):
        assert table.of_image(f"sha256:{number}") == {"arm": (f"registry.example/{number}:24",)}
    assert len(table.of_image("sha256:shared")[""]) == 75
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.json"]


class Meddler(str):
    """A text whose comparison adds a row to a table, as another thread may at any time."""

    __slots__ = ("table",)
    table: HandlerTable

    def __eq__(self, other: object) -> bool:
        self.table.put(f"registry.example/new:{id(other)}", "arm", ARM)
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("is_file", [False, True])
def test_a_table_may_be_changed_while_it_is_read(tmp_path: Path, is_file: bool) -> None:
    table = HandlerTable(tmp_path / "table.json" if is_file else None)
    for number in range(3):
        table.put(f"registry.example/app:{number}", "arm", ARM)
    sought, image = Meddler("registry.example/app:2"), Meddler(ARM)
    sought.table = image.table = table
    assert table.knows(sought)
    assert set(table.of_image(image)) == {"arm"}
    assert len(table.of_image(ARM)["arm"]) > 3


def test_a_table_is_read_again_only_when_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.json"
    one, other = HandlerTable(path), HandlerTable(path)
    one.put(TAG, "arm", ARM)
    assert other.get(TAG, "arm") == ARM
    with monkeypatch.context() as patch:
        patch.setattr(handler_table, "_load", None)
        assert other.knows(TAG)
        assert other.of_image(ARM) == {"arm": (TAG,)}
    one.forget(ARM)
    assert not other.knows(TAG)
