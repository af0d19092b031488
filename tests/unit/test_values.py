"""Our dataclass is the standard one, but for when its methods are written."""

from __future__ import annotations

import abc
import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from imagestore.values import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Point:
    """Ours."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, compare=False)
    secret: str = field(default="s", repr=False, hash=False)
    made: float = field(init=False, default=1.5)
    unit: str = field(default="m", kw_only=True)
    count: ClassVar[int] = 7


def described() -> type[Any]:
    """The same, told to the standard library."""

    class Described:
        x: int
        y: int = 2
        names: list[str] = dataclasses.field(default_factory=list, compare=False)
        secret: str = dataclasses.field(default="s", repr=False, hash=False)
        made: float = dataclasses.field(init=False, default=1.5)
        unit: str = dataclasses.field(default="m", kw_only=True)
        count: ClassVar[int] = 7

    return Described


Standard: type[Any] = dataclasses.dataclass(frozen=True, slots=True)(described())
#: Ours, with the standard library's fields.
Mixed: type[Any] = dataclass(frozen=True, slots=True)(described())


@dataclass(slots=True)
class Mutable:
    value: int
    double: int = 0

    def __post_init__(self) -> None:
        self.double = 2 * self.value


@dataclass(frozen=True, slots=True)
class Own:
    value: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "own"


@dataclass(frozen=True, slots=True)
class Derived(Point):
    z: int = 3


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, 3), {"unit": "km"}),
    ((), {"x": 5, "names": ["a"]}),
    ((1, 2, [], "t"), {}),
]


def fresh(*, is_warm: bool) -> type[Point]:
    """A class like Point, before or after its methods were written."""

    @dataclass(frozen=True, slots=True)
    class Fresh(Point):
        pass

    for _ in range(50 if is_warm else 0):
        Fresh(1)
    return Fresh


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize(("arguments", "named"), CALLS)
def test_it_makes_the_same_before_and_after_methods_are_written(
    arguments: tuple[Any, ...], named: dict[str, Any], *, is_warm: bool
) -> None:
    ours, standard = fresh(is_warm=is_warm)(*arguments, **named), Standard(*arguments, **named)
    assert dataclasses.asdict(ours) == dataclasses.asdict(standard)


@pytest.mark.parametrize("kind", [Point, Mixed])
@pytest.mark.parametrize(("arguments", "named"), CALLS)
def test_it_makes_and_shows_the_same(kind: type[Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, standard = kind(*arguments, **named), Standard(*arguments, **named)
    assert repr(ours) == repr(standard).replace(Standard.__qualname__, kind.__qualname__)
    assert dataclasses.asdict(ours) == dataclasses.asdict(standard)
    assert hash(ours) == hash(standard)
    assert kind.__match_args__ == Standard.__match_args__


def told(cls: type[Any]) -> list[tuple[Any, ...]]:
    members = ("name", "default", "default_factory", "init", "repr", "hash", "compare", "kw_only")
    return [tuple(getattr(each, member) for member in members) for each in dataclasses.fields(cls)]


@pytest.mark.parametrize("kind", [Point, Mixed])
def test_the_standard_library_reads_its_fields_as_its_own(kind: type[Any]) -> None:
    assert told(kind) == told(Standard)


def test_a_method_may_be_written_while_another_thread_calls_it() -> None:
    for name, arguments in [("__eq__", (Derived(1),)), ("__hash__", ()), ("__repr__", ())]:

        @dataclass(frozen=True, slots=True)
        class Fresh(Point):
            pass

        shared = Fresh.__dict__[name]
        one = [shared(Fresh(1), *arguments) for _ in range(2)]
        assert one == [getattr(Fresh(1), name)(*arguments)] * 2
        assert Fresh.__dict__[name] is not shared


def test_a_wrapped_method_stays_wrapped_and_calls_what_it_wraps() -> None:
    for name, arguments in [("__eq__", (Derived(1),)), ("__hash__", ()), ("__repr__", ()), ("__init__", (1,))]:

        @dataclass(frozen=True, slots=True)
        class Fresh(Point):
            pass

        calls: list[Any] = []
        original = getattr(Fresh, name)
        one = Fresh(1)

        def wrapped(self: Any, *given: Any, original: Any = original, calls: list[Any] = calls) -> Any:
            calls.append(given)
            return original(self, *given)

        setattr(Fresh, name, wrapped)
        assert len({repr(getattr(one, name)(*arguments)) for _ in range(50)}) == 1
        assert len(calls) == 50
        assert Fresh.__dict__[name] is wrapped


def test_a_method_of_the_class_above_sees_what_that_class_has() -> None:
    @dataclass(frozen=True, slots=True)
    class Base:
        x: int

    @dataclass(frozen=True, slots=True)
    class Below(Base):
        y: int = 0

    for _ in range(2):
        assert Base.__repr__(Below(1, 5)).endswith("Below(x=1)")
        assert Base.__hash__(Below(1, 5)) == Base.__hash__(Below(1, 6)) == hash((1,))
        assert Base.__eq__(Below(1, 5), Below(1, 6))
        assert Below(1, 5) != Below(1, 6)
    assert Base.__eq__(3, Base(1)) is NotImplemented


def test_fields_are_refused_that_the_standard_library_refuses() -> None:
    for wrong in ({"default": 1, "default_factory": list}, {"defalt": 1}):
        with pytest.raises((TypeError, ValueError)):
            field(**wrong)
    defaults: list[Any] = [field(default=[]), dataclasses.field(default=[]), []]
    for default in defaults:
        cls = type("Shared", (), {"__annotations__": {"x": "list[int]"}, "x": default})
        with pytest.raises(ValueError, match="one list for all; use default_factory"):
            dataclass(frozen=True, slots=True)(cls)


def test_a_class_keeps_the_positions_it_chose() -> None:
    @dataclass(frozen=True, slots=True)
    class Turned:
        __match_args__ = ("y", "x")
        x: int
        y: int

    match Turned(1, 2):
        case Turned(first, second):
            assert (first, second) == (2, 1)


def test_a_class_keeps_its_own_method_that_asks_the_one_above() -> None:
    @dataclass(frozen=True, slots=True)
    class Base:
        x: int

    @dataclass(frozen=True, slots=True)
    class Loud(Base):
        y: int = 0

        def __hash__(self) -> int:
            return Base.__hash__(self) + 1

        def __repr__(self) -> str:
            return f"{Base.__repr__(self)}!"

    for _ in range(2):
        assert hash(Loud(1, 5)) == hash(Base(1)) + 1
        assert repr(Loud(1, 5)).endswith("Loud(x=1)!")
    assert Base(1) == Base(1)
    assert Loud(1, 5) != Loud(1, 6)


@pytest.mark.parametrize(
    ("arguments", "named"), [((), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"z": 1}), ((1,), {"made": 1}), ((1,), {"x": 2})]
)
def test_it_refuses_the_same_calls(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    for kind in (Point, fresh(is_warm=False), fresh(is_warm=True), Standard):
        with pytest.raises(TypeError):
            kind(*arguments, **named)


def test_defaults_are_made_for_each_instance() -> None:
    assert Point(1).names is not Point(1).names


def test_equality_is_by_class_and_compared_fields() -> None:
    assert Point(1, names=["a"]) == Point(1, names=["b"])
    assert Point(1) != Point(2)
    assert Point(1, secret="a") != Point(1, secret="b")
    assert hash(Point(1, secret="a")) == hash(Point(1, secret="b"))
    assert Point(1) != Derived(1)


def test_a_frozen_instance_stays_as_it_is() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    assert not hasattr(point, "__dict__")


def test_copies_and_pickles_are_equal() -> None:
    for point in (Point(1, 2, ["a"], unit="km"), Derived(1, z=9)):
        assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
        assert dataclasses.replace(point, x=7).x == 7
    assert copy.deepcopy(Mutable(3)) == Mutable(3)


def test_classes_that_change_are_not_hashed() -> None:
    thing = Mutable(2)
    thing.value = 5
    assert (thing.value, thing.double) == (5, 4)
    with pytest.raises(TypeError, match="unhashable"):
        hash(thing)


def test_methods_that_a_class_has_stay() -> None:
    assert (repr(Own(1)), Own(1) == Own(2), hash(Own(5))) == ("own", True, 1)


@dataclass(frozen=True, slots=True)
class Redefined(Point):
    x: int = 5


@dataclasses.dataclass(frozen=True)
class StandardChild(Point):
    z: int = 3


def test_a_field_that_is_declared_again_is_the_same_field() -> None:
    assert (Redefined(), Redefined(x=1).x) == (Redefined(5), 1)
    Point.__init__(again := Redefined(), 9)
    assert again.x == 9


def test_a_standard_class_may_derive_from_ours() -> None:
    assert (StandardChild(1).z, StandardChild(1).y) == (3, 2)


def test_classes_without_fields_keep_their_own_methods() -> None:
    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    made: list[int] = []

    @dataclass(frozen=True, slots=True)
    class Counting(Empty):
        def __init__(self) -> None:
            Empty.__init__(self)
            made.append(1)

    Counting()
    Counting()
    assert made == [1, 1]


@pytest.mark.parametrize("change", [{}, {"x": 9}, {"names": ["b"], "unit": "km"}, {"made": 2.0}, {"none": 1}])
def test_replaced_as_the_standard_does(change: dict[str, Any]) -> None:
    def replaced(function: Any, kind: type[Any]) -> Any:
        try:
            return dataclasses.asdict(function(kind(1, 2, ["a"], "t"), **change))
        except (TypeError, ValueError):
            # Which of them differs between versions of Python.
            return "refused"

    standard = replaced(dataclasses.replace, Standard)
    assert replaced(replace, Point) == replaced(replace, Standard) == replaced(dataclasses.replace, Point) == standard


def test_fields_that_a_standard_child_adds_are_replaced_and_kept() -> None:
    child = StandardChild(1, z=9)
    assert (replace(child, x=5).z, replace(child, z=4).z) == (9, 4)
    assert type(replace(child, x=5)) is StandardChild


@dataclasses.dataclass
class StandardChange(Mutable):
    z: int = 4


@dataclasses.dataclass(slots=True)
class StandardSlotted(Mutable):
    z: int = 4


class PlainChild(Mutable):
    """With a dictionary, as every class without slots."""


@pytest.mark.parametrize(
    "value",
    [StandardChild(1, z=5), StandardChange(3, z=5), StandardSlotted(3, z=5)],
    ids=lambda value: type(value).__name__,
)
def test_copies_of_a_standard_child_have_what_it_adds(value: Any) -> None:
    copies = copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))
    assert [each.z for each in copies] == 3 * [5]


def test_copies_of_what_changes_have_everything_it_has() -> None:
    child: Any = PlainChild(3)
    child.note = "x"
    for each in (copy.copy(child), copy.deepcopy(child), pickle.loads(pickle.dumps(child))):
        assert (each.value, each.double, each.note) == (3, 6, "x")


def test_a_class_keeps_what_makes_it() -> None:
    @dataclass(frozen=True, slots=True)
    class Abstract(abc.ABC):
        x: int

        @abc.abstractmethod
        def size(self) -> int: ...

    with pytest.raises(TypeError, match="abstract"):
        Abstract(1)  # type: ignore[abstract]


def test_patterns_match_by_position() -> None:
    match Point(1, 9):
        case Point(x, y):
            assert (x, y) == (1, 9)
