"""RL frameworks' own packages, of .venv/frameworks/packages, importable beside dev's.

    foreign.add_frameworks()
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

What they import at their heads and the code under test never calls is not installed: ray, numba, openai and hydra together are
half a gigabyte. Each is stood in for by modules of which anything can be imported; whatever is called of it does nothing.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from testing.engines import ROOT

FRAMEWORKS = ROOT / ".venv" / "frameworks"
PACKAGES = FRAMEWORKS / "packages"
STOOD_IN_FOR = ("ray", "numba", "openai", "hydra")


class MissingFrameworks(RuntimeError):
    """The environment is not there; a test that needs it fails."""


def add_packages() -> None:
    """Puts the packages behind all others."""
    if not (FRAMEWORKS / ".stamp").is_file():
        raise MissingFrameworks(".venv/frameworks is missing; run tools/setup-venvs frameworks")
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))


def add_frameworks() -> None:
    """Puts the packages behind all others, and the stand-ins behind those."""
    add_packages()
    if not any(isinstance(finder, _StandIns) for finder in sys.meta_path):
        sys.meta_path.append(_StandIns())


def class_of(file: str, name: str, members: Sequence[str], names: Mapping[str, Any]) -> type:
    """A class of the framework's own source with only those of its members: of files that this Python, or what is installed, cannot import.

    Args:
        file: below the packages, such as "art/local/backend.py".
        names: what the members use of their module.

    Raises:
        AssertionError: the class lacks one of the members.
    """
    tree = ast.parse((PACKAGES / file).read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    found.body = [node for node in found.body if getattr(node, "name", "") in members]
    assert {node.name for node in found.body} == set(members), f"{name} of {file} has others"  # type: ignore[attr-defined]
    found.bases, found.decorator_list = [], []
    scope = {**names, "__name__": file}
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    exec(compile(ast.fix_missing_locations(ast.Module([future, found], [])), file, "exec"), scope)
    made = scope[name]
    assert isinstance(made, type)
    return made


def load_file(name: str, file: str) -> types.ModuleType:
    """One file as the module `name`, without the package that it lies in."""
    spec = importlib.util.spec_from_file_location(name, PACKAGES / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Anything:
    """Of a stand-in: called as a decorator it leaves what it decorates, as a base class it is object."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self._name}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __getitem__(self, key: Any) -> _Anything:
        return self

    def __or__(self, other: Any) -> _Anything:  # of annotations
        return self

    __ror__ = __or__


class _Module(types.ModuleType):
    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        found = fullname.partition(".")[0] in STOOD_IN_FOR
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if found else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass
