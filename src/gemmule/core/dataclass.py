"""Frozen dataclasses whose methods are not compiled before they are used.

`dataclasses.dataclass` compiles six methods of each class when its module is imported: of some hundred classes, more
than a third of the first call of a process. Here `__init__` is compiled when it is first looked up, and the others are
functions of the fields' names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses
    import inspect
    import operator
    import sys

    def dataclass(*, frozen):
        """Return a decorator that does as ``dataclasses.dataclass(frozen=True)`` does, for classes without `InitVar`.

        The fields are those of `dataclasses`, and so are its functions. Only frozen classes are made.
        """
        assert frozen
        return _frozen

    def _frozen(cls):
        _add_fields(cls)
        fields = dataclasses.fields(cls)
        compared = [field.name for field in fields if field.compare]
        # Of one name, attrgetter would return no tuple.
        values = operator.attrgetter(*(compared if len(compared) > 1 else compared * 2)) if compared else _nothing

        def equal(self, other):
            if other.__class__ is not self.__class__:
                return NotImplemented
            return values(self) == values(other)

        def hashed(self):
            return hash(values(self))

        for name, method in (("__eq__", equal), ("__hash__", hashed), ("__repr__", _repr), ("__init__", _Init(cls))):
            if name not in cls.__dict__ or (name == "__hash__" and cls.__hash__ is None):
                setattr(cls, name, method)
        cls.__setattr__, cls.__delattr__ = _set, _delete
        return cls

    def _add_fields(cls):
        """Set what `dataclasses` knows a class by, without its methods."""
        annotations = inspect.get_annotations(cls)
        members = {name: cls.__dict__[name] for name in annotations if name in cls.__dict__}
        # By itself: `dataclasses` takes no class of a frozen one that it is not to freeze.
        # With any docstring: `dataclasses` would write one.
        about = {"__module__": cls.__module__, "__doc__": "-", "__annotations__": annotations}
        alone = type(cls.__name__, (), about | members)
        alone = dataclasses.dataclass(init=False, repr=False, eq=False)(alone)
        for name in members:
            if name in alone.__dict__:
                setattr(cls, name, alone.__dict__[name])
            else:
                delattr(cls, name)
        fields = {}
        for base in (*cls.__mro__[:0:-1], alone):
            fields |= base.__dict__.get("__dataclass_fields__", {})
        cls.__dataclass_fields__, cls.__dataclass_params__ = fields, alone.__dataclass_params__
        cls.__dataclass_params__.frozen = True
        cls.__match_args__ = tuple(one.name for one in dataclasses.fields(cls) if one.init and not one.kw_only)

    def _nothing(_self):
        return ()

    def _repr(self):
        shown = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _set(_self, name, _value):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _delete(_self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    class _Init:
        """Stands for a class's `__init__` until it is looked up."""

        def __init__(self, cls):
            self._class = cls

        def __get__(self, instance, owner=None):
            self._class.__init__ = compiled = _compiled(self._class)
            return compiled.__get__(instance, owner)

    #: Stands for a value that the field's factory makes.
    _MADE = object()

    def _compiled(cls):
        """Return `__init__` for the fields of a class."""
        given, keywords, lines, values = ["self"], [], [], {"_assign": object.__setattr__, "_made": _MADE}
        for field in dataclasses.fields(cls):
            name = field.name
            made = field.default_factory is not dataclasses.MISSING
            if made:
                values[f"_factory_{name}"] = field.default_factory
            elif field.default is not dataclasses.MISSING:
                values[f"_default_{name}"] = field.default
            elif not field.init:
                continue
            if field.init:
                default = "=_made" if made else f"=_default_{name}" if f"_default_{name}" in values else ""
                (keywords if field.kw_only else given).append(name + default)
                value = f"_factory_{name}() if {name} is _made else {name}" if made else name
            elif made:
                value = f"_factory_{name}()"
            else:
                continue
            lines.append(f"_assign(self, {name!r}, {value})")
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        parameters = ", ".join([*given, *(["*", *keywords] if keywords else [])])
        body = "\n  ".join(lines or ["pass"])
        source = f"def make({', '.join(values)}):\n def __init__({parameters}):\n  {body}\n return __init__"
        namespace = {}
        exec(source, vars(sys.modules[cls.__module__]), namespace)  # noqa: S102
        compiled = namespace["make"](**values)
        compiled.__qualname__ = f"{cls.__qualname__}.__init__"
        compiled.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls) if field.init}
        return compiled
