"""Declares, loads, checks and documents settings.

A setting is a field of a frozen `msgspec.Struct`, with a default, a constraint and a sentence:

    class Connect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        port: Annotated[int, msgspec.Meta(ge=0, le=65535), doc("Where user agents connect.")] = 8080

A field whose type is such a struct is a section; dotted names lead into it (`connect.port`).

Precedence per setting: defaults < file < environment < flags. An unknown name is an error with its
source and the nearest known name. A bad value is an error with the setting, its source and what is
expected; the value of a secret is never repeated. A retired name is an error that tells what to do
instead. All errors are reported together.
"""

import difflib
import enum
import fnmatch
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

import msgspec
import msgspec.structs

S = TypeVar("S", bound=msgspec.Struct)

_SWITCH_WORDS = {"yes": True, "on": True, "no": False, "off": False}
_LISTS = (list, tuple, set, frozenset)


class SettingsError(ValueError):
    """One or more settings cannot be used; `problems` has a sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Doc(msgspec.Struct, frozen=True):
    """What `doc()` leaves in an annotation; msgspec passes over it."""

    sentence: str
    unit: str = ""
    daemon: str = ""
    secret: bool = False
    table: bool = False


def doc(
    sentence: str, *, unit: str = "", daemon: str = "", secret: bool = False, table: bool = False
) -> Doc:
    """A setting's sentence. `daemon` is its name there if it differs (`AUTOCONNECT port`); `table`
    is for text that holds a JSON object: a table in a file stands for it."""
    return Doc(sentence, unit, daemon, secret, table)


class SettingDoc(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `waystation config docs`."""

    name: str
    env: str
    type: str
    default: str
    unit: str
    sentence: str
    daemon: str
    secret: bool


class _Field(msgspec.Struct, frozen=True):
    path: tuple[str, ...]
    type: Any
    info: msgspec.structs.FieldInfo
    doc: Doc

    @property
    def name(self) -> str:
        return ".".join(self.path)


class _Given(msgspec.Struct, frozen=True):
    value: Any
    source: str
    textual: bool  # came as text, so "8080" may mean a number


class _Layers:
    """What each layer gives, the later over the earlier, and what is wrong with it."""

    def __init__(
        self,
        cls: type[msgspec.Struct],
        retired: Mapping[str, str],
        on_unknown: Callable[[str], None] | None,
    ) -> None:
        self._retired = {tuple(name.split(".")): advice for name, advice in retired.items()}
        self._fields = {field.path: field for field in _fields(cls)}
        self._names = [field.name for field in self._fields.values()]
        self._given: dict[tuple[str, ...], _Given] = {}
        self.problems: list[str] = []
        self._unknown = on_unknown or self.problems.append

    def tables(self, layer: Mapping[str, Any], source: str) -> None:
        for path, value in _leaves(layer, self._fields):
            name = ".".join(path)
            if path in self._fields:
                self._given[path] = _Given(value, source, textual=False)
            elif any(known[: len(path)] == path for known in self._fields):
                self.problems.append(f"{name} in {source} is a section, not a setting")
            elif not self._is_retired(path, source):
                self._unknown(f"unknown setting {name} in {source}{_nearest(path, self._names)}")

    def environment(self, env: Mapping[str, str], prefix: str, allowed: Collection[str]) -> None:
        def named(path: tuple[str, ...]) -> str:
            return prefix + "__".join(path).upper()

        known = {named(path): path for path in self._fields}
        retired = {named(path): path for path in self._retired}
        for name, text in env.items():
            upper = name.upper()
            if not upper.startswith(prefix) or any(fnmatch.fnmatchcase(name, a) for a in allowed):
                continue
            if upper in known:
                source = f"environment variable {name}"
                self._given[known[upper]] = _Given(text, source, textual=True)
            elif not self._is_retired(retired.get(upper, ()), f"environment variable {name}"):
                self._unknown(f"unknown environment variable {name}{_nearest((upper,), known)}")

    def flags(self, flags: Mapping[str, Any], names: Mapping[str, str]) -> None:
        for name, value in flags.items():
            path = tuple(name.split("."))
            if value is None:
                continue
            if path in self._fields:
                source = f"flag {names.get(name) or '--' + path[-1].replace('_', '-')}"
                self._given[path] = _Given(value, source, textual=isinstance(value, str))
            elif not self._is_retired(path, "the flags"):
                nearest = _nearest(path, self._names)
                self._unknown(f"unknown setting {name} among the flags{nearest}")

    def _is_retired(self, path: tuple[str, ...], source: str) -> bool:
        advice = self._retired.get(path)
        if advice is not None:
            self.problems.append(f"{'.'.join(path)} in {source} was retired: {advice}")
        return advice is not None

    def converted(self) -> dict[tuple[str, ...], Any]:
        values: dict[tuple[str, ...], Any] = {}
        for path, given in self._given.items():
            field = self._fields[path]
            try:
                values[path] = _convert(given, field)
            except (msgspec.MsgspecError, ValueError) as exc:
                self.problems.append(_bad_value(field, given, exc))
        return values


def load(
    cls: type[S],
    *,
    defaults: Mapping[str, Any] | None = None,
    toml: Mapping[str, Any] | None = None,
    toml_path: str = "the settings file",
    env: Mapping[str, str] | None = None,
    prefix: str = "WAYSTATION_",
    flags: Mapping[str, Any] | None = None,
    flag_names: Mapping[str, str] | None = None,
    allow_env: Collection[str] = (),
    retired: Mapping[str, str] = MappingProxyType({}),
    on_unknown: Callable[[str], None] | None = None,
) -> S:
    """Builds a `cls` from its layers.

    `defaults` and `toml` are nested like the struct; `flags` maps dotted names to values (None
    means that the flag was not given), and `flag_names` says which are not called like the end of
    their setting's name. `allow_env` are environment names, or patterns with `*`,
    that carry the prefix and are no settings; `retired` says what to do about settings that are no
    more, by their dotted names. With `on_unknown`, unknown names are told to it
    instead of being errors.
    """
    layers = _Layers(cls, retired, on_unknown)
    layers.tables(defaults or {}, "the defaults")
    layers.tables(toml or {}, toml_path)
    layers.environment(env or {}, prefix, allow_env)
    layers.flags(flags or {}, flag_names or {})
    values = layers.converted()
    built = None if layers.problems else _build(cls, (), values, layers.problems)
    if layers.problems:
        raise SettingsError(layers.problems)
    return cast(S, built)


def describe(cls: type[msgspec.Struct], *, prefix: str = "WAYSTATION_") -> list[SettingDoc]:
    """Every setting of `cls` and its sections, in the order in which they are declared."""
    return [
        SettingDoc(
            name=field.name,
            env=prefix + "__".join(field.path).upper(),
            type=_type_text(field.type),
            default=_default_text(field.info),
            unit=field.doc.unit or _unit_of(field.path[-1]),
            sentence=field.doc.sentence,
            daemon=field.doc.daemon,
            secret=field.doc.secret,
        )
        for field in _fields(cls)
    ]


def _fields(cls: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[_Field]:
    for info in msgspec.structs.fields(cls):
        section = _section(info.type)
        here = (*path, info.encode_name)
        if section is not None:
            yield from _fields(section, here)
        else:
            yield _Field(here, info.type, info, _doc_of(info.type))


def _section(type_: Any) -> type[msgspec.Struct] | None:
    bare = _bare(type_)
    if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        return bare
    return None


def _bare(type_: Any) -> Any:
    while get_origin(type_) is Annotated:
        type_ = get_args(type_)[0]
    return type_


def _doc_of(type_: Any) -> Doc:
    if get_origin(type_) is Annotated:
        inner, *marks = get_args(type_)
        for mark in marks:
            if isinstance(mark, Doc):
                return mark
        return _doc_of(inner)
    return Doc("")


def _leaves(
    layer: Mapping[str, Any],
    fields: Mapping[tuple[str, ...], _Field],
    path: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in layer.items():
        here = (*path, key)
        if here not in fields and isinstance(value, Mapping) and value:
            yield from _leaves(cast(Mapping[str, Any], value), fields, here)
        else:
            yield here, value


def _nearest(path: tuple[str, ...], known: Collection[str]) -> str:
    namesakes = [name for name in known if name.rpartition(".")[2] == path[-1]]
    close = difflib.get_close_matches(".".join(path), namesakes or known, n=1, cutoff=0.5)
    close = close or namesakes[:1]
    return f"; did you mean {close[0]}?" if close else ""


def _convert(given: _Given, field: _Field) -> Any:
    value, type_ = given.value, field.type
    if field.doc.table and isinstance(value, Mapping):
        value = msgspec.json.encode(value).decode()
    if given.textual:
        value = _from_text(value, type_)
    return msgspec.convert(value, type_, strict=not given.textual, dec_hook=_decode_other)


def _from_text(text: str, type_: Any) -> Any:
    kinds = [get_origin(_bare(one)) or _bare(one) for one in _alternatives(type_)]
    if NoneType in kinds and not text and str not in kinds:
        return None
    if any(kind in _LISTS for kind in kinds):
        if text.lstrip().startswith("["):
            return msgspec.json.decode(text)
        return [part.strip() for part in text.split(",") if part.strip()]
    if dict in kinds and text.lstrip().startswith("{"):
        return msgspec.json.decode(text)
    if bool in kinds:
        return _SWITCH_WORDS.get(text.strip().lower(), text.strip())
    if str in kinds:
        return text
    return text.strip()


def _alternatives(type_: Any) -> tuple[Any, ...]:
    bare = _bare(type_)
    return get_args(bare) if get_origin(bare) in (typing.Union, UnionType) else (bare,)


def _decode_other(type_: type, value: Any) -> Any:
    if type_ is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"Expected `{type_.__name__}`, got `{type(value).__name__}`")


def _bad_value(field: _Field, given: _Given, exc: Exception) -> str:
    expected = str(exc).replace(" - at `$`", "").replace("`", "")
    expected = expected[:1].lower() + expected[1:]
    shown = "a secret" if field.doc.secret else repr(given.value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    allowed = _choices(field.type)
    more = f" (one of {', '.join(allowed)})" if allowed else ""
    if allowed and any(_bare(one) is int for one in _alternatives(field.type)):
        if expected.startswith("invalid enum value"):
            expected = "expected int"
        more = f", or {', '.join(allowed)}"
    return f"{field.name} from {given.source} is {shown}: {expected}{more}"


def _choices(type_: Any) -> list[str]:
    found: list[str] = []
    for one in _alternatives(type_):
        bare = _bare(one)
        if get_origin(bare) is Literal:
            found.extend(str(choice) for choice in get_args(bare))
        elif isinstance(bare, type) and issubclass(bare, enum.Enum):
            found.extend(str(member.value) for member in bare)
    return found


def _build(
    cls: type[msgspec.Struct],
    path: tuple[str, ...],
    values: Mapping[tuple[str, ...], Any],
    problems: list[str],
) -> msgspec.Struct | None:
    kwargs: dict[str, Any] = {}
    for info in msgspec.structs.fields(cls):
        here = (*path, info.encode_name)
        section = _section(info.type)
        if section is not None:
            kwargs[info.name] = _build(section, here, values, problems)
        elif here in values:
            kwargs[info.name] = values[here]
        elif info.required:
            problems.append(f"{'.'.join(here)} has no default and must be set")
    if problems:
        return None
    try:
        return cls(**kwargs)
    except ValueError as exc:  # a struct's own check across several fields
        problems.append(f"{'.'.join(path) or 'settings'}: {exc}")
        return None


def _type_text(type_: Any) -> str:
    if get_origin(type_) is Annotated:
        inner, *marks = get_args(type_)
        bounds = [
            text for mark in marks if isinstance(mark, msgspec.Meta) for text in _bounds(mark)
        ]
        return " ".join([_type_text(inner), *bounds])
    origin = get_origin(type_)
    if origin in (typing.Union, UnionType):
        return " or ".join("none" if a is NoneType else _type_text(a) for a in get_args(type_))
    choices = _choices(type_)
    if choices:
        return " or ".join(f'"{choice}"' for choice in choices)
    if origin in _LISTS:
        return f"list of {_type_text(get_args(type_)[0])}"
    if origin is dict:
        return f"table of {_type_text(get_args(type_)[1])}"
    names = {bool: "true or false", str: "text", Path: "path", float: "number", int: "integer"}
    return names.get(type_, getattr(type_, "__name__", str(type_)))


def _bounds(meta: msgspec.Meta) -> Iterator[str]:
    for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
        bound = getattr(meta, name)
        if bound is not None:
            yield f"{sign} {bound}"
    if meta.min_length is not None:
        yield f"of length >= {meta.min_length}"
    if meta.max_length is not None:
        yield f"of length <= {meta.max_length}"
    if meta.pattern is not None:
        yield f"like {meta.pattern}"


def _default_text(info: msgspec.structs.FieldInfo) -> str:
    if info.default is not msgspec.NODEFAULT:
        default = info.default
    elif info.default_factory is not msgspec.NODEFAULT:
        default = cast(Callable[[], Any], info.default_factory)()
    else:
        return "required"
    if default is None:
        return "none"
    if isinstance(default, Path):
        return str(default)
    return msgspec.json.encode(default).decode()


def _unit_of(name: str) -> str:
    """Units come last in our names, so a name knows its own."""
    last = name.rpartition("_")[2]
    return {"s": "s", "ms": "ms", "bytes": "bytes", "us": "us"}.get(last, "")
