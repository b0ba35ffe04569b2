"""Frozen dataclasses whose fields and methods are not made before they are used.

`dataclasses.dataclass` describes each field and compiles six methods of each class when its module is imported: of some
hundred classes, half of the first call of a process. Here `__init__` is compiled when it is first looked up, the other
methods are functions of the fields' names, and `dataclasses` describes the fields when one of its functions is called.
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
    import typing

    def dataclass(*, frozen):
        """Return a decorator that does as ``dataclasses.dataclass(frozen=True)`` does, for classes without `InitVar`.

        The fields are those of `dataclasses`, and so are its functions. Only frozen classes are made.
        """
        assert frozen
        return _frozen

    def _frozen(cls):
        own = vars(cls)
        given = {name: value for name, value in own.items() if isinstance(value, dataclasses.Field)}
        for name, field in given.items():
            if field.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, field.default)
        cls._given_fields = given
        for name, make in _MADE_LATER.items():
            if name not in own or (name == "__hash__" and cls.__hash__ is None):
                setattr(cls, name, _Late(cls, name, make))
        cls.__setattr__, cls.__delattr__ = _set, _delete
        return cls

    class _Late:
        """Stands for an attribute of a class until it is looked up."""

        def __init__(self, cls, name, make):
            self._class, self._name, self._make = cls, name, make

        def __get__(self, instance, owner=None):
            made = self._make(self._class)
            setattr(self._class, self._name, made)
            return made.__get__(instance, owner) if callable(made) else made

    def _own_fields(cls):
        """Return the fields that a class declares itself, by name: `dataclasses` has not named them yet."""
        fields = {}
        for name, annotation in inspect.get_annotations(cls).items():
            whole = annotation if isinstance(annotation, str) else f"{typing.get_origin(annotation) or annotation}"
            if not whole.startswith(("ClassVar", "typing.ClassVar")):
                default = vars(cls).get(name, dataclasses.MISSING)
                fields[name] = cls._given_fields.get(name) or dataclasses.field(default=default)
                fields[name].type = annotation
        return fields

    def _all_fields(cls):
        """Return the fields of a class and its bases, by name."""
        fields = {}
        for base in cls.__mro__[::-1]:
            if "_given_fields" in vars(base):
                fields |= _own_fields(base)
            elif "__dataclass_fields__" in vars(base):
                fields |= {field.name: field for field in dataclasses.fields(base)}
        return fields

    def _alone(cls):
        """Return a class with the fields that a class declares itself, made by `dataclasses`."""
        # By itself: `dataclasses` takes no class of a frozen one that it is not to freeze.
        # With any docstring: `dataclasses` would write one.
        annotations = inspect.get_annotations(cls)
        members = {name: vars(cls)[name] for name in annotations if name in vars(cls)} | cls._given_fields
        about = {"__module__": cls.__module__, "__doc__": "-", "__annotations__": annotations}
        return dataclasses.dataclass(init=False, repr=False, eq=False)(type(cls.__name__, (), about | members))

    def _standard_fields(cls):
        fields = {}
        for base in (*cls.__mro__[:0:-1], _alone(cls)):
            if "__dataclass_fields__" in vars(base):
                fields |= base.__dataclass_fields__
        return fields

    def _standard_parameters(cls):
        parameters = _alone(cls).__dataclass_params__
        parameters.frozen = True
        return parameters

    def _match_args(cls):
        return tuple(name for name, field in cls._every_field.items() if field.init and field.kw_only is not True)

    def _compared(cls):
        """Return a function of an instance that returns the values of its fields that are compared."""
        names = [name for name, field in cls._every_field.items() if field.compare]
        # With one name, attrgetter returns no tuple.
        return operator.attrgetter(*(names if len(names) > 1 else names * 2)) if names else _nothing

    def _nothing(_self):
        return ()

    def _equality(cls):
        values = _compared(cls)

        def equal(self, other):
            if other.__class__ is not self.__class__:
                return NotImplemented
            return values(self) == values(other)

        return equal

    def _hash(cls):
        values = _compared(cls)

        def hashed(self):
            return hash(values(self))

        return hashed

    def _representation(cls):
        names = [name for name, field in cls._every_field.items() if field.repr]

        def represented(self):
            return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        return represented

    def _set(_self, name, _value):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _delete(_self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    #: Stands for a value that the field's factory makes.
    _MADE = object()

    def _compiled(cls):
        """Return `__init__` for the fields of a class."""
        given, keywords, assigned, values = ["self"], [], [], {"_made": _MADE}
        for name, field in cls._every_field.items():
            made = field.default_factory is not dataclasses.MISSING
            if made:
                values[f"_factory_{name}"] = field.default_factory
            elif field.default is not dataclasses.MISSING:
                values[f"_default_{name}"] = field.default
            elif not field.init:
                continue
            if field.init:
                default = "=_made" if made else f"=_default_{name}" if f"_default_{name}" in values else ""
                (keywords if field.kw_only is True else given).append(name + default)
                value = f"_factory_{name}() if {name} is _made else {name}" if made else name
            elif made:
                value = f"_factory_{name}()"
            else:
                continue
            assigned.append(f"{name}={value}")
        # At once: `object.__setattr__` for each field would take twice as long.
        lines = [f"self.__dict__.update({', '.join(assigned)})"]
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        parameters = ", ".join([*given, *(["*", *keywords] if keywords else [])])
        body = "\n  ".join(lines)
        source = f"def make({', '.join(values)}):\n def __init__({parameters}):\n  {body}\n return __init__"
        namespace = {}
        exec(source, vars(sys.modules[cls.__module__]), namespace)  # noqa: S102
        compiled = namespace["make"](**values)
        compiled.__qualname__ = f"{cls.__qualname__}.__init__"
        compiled.__annotations__ = {name: field.type for name, field in cls._every_field.items() if field.init}
        return compiled

    #: Attributes made at first access, by name.
    _MADE_LATER = {
        "_every_field": _all_fields,
        "__dataclass_fields__": _standard_fields,
        "__dataclass_params__": _standard_parameters,
        "__match_args__": _match_args,
        "__init__": _compiled,
        "__eq__": _equality,
        "__hash__": _hash,
        "__repr__": _representation,
    }
