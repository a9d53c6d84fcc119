"""A user's own code, named in a study by its dotted path: where its files lie, what they hash to,
what it names. Light.

Not seen: data files that the code opens, and modules that it imports under a name that it computes.
"""

import ast
import difflib
import importlib
import importlib.util
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.files import sha256_file

Code = dict[str, str]
"""What identifies own code: by module the SHA-256 of its file, or by installed package its
version."""
_INSTALLED = {"site-packages", "dist-packages"}


def find_modules(name: str) -> dict[str, Path]:
    """Return by name the files of a module and of the packages that it lies in, as far as they are
    there.

    Nothing is imported. Installed packages are searched, and last the working directory, as our
    commands do.
    """
    here = str(Path.cwd())
    places = [*(place for place in sys.path if place not in ("", here)), here]
    files: dict[str, Path] = {}
    parts = name.split(".")
    for prefix in (".".join(parts[: count + 1]) for count in range(len(parts))):
        # By its last part: folders without __init__.py would look for their parent among what is
        # imported.
        spec = PathFinder.find_spec(prefix.rpartition(".")[2], places)
        if spec is None and prefix == parts[0]:
            with suppress(ValueError):  # a module that was not imported, such as __main__
                # An editable install may have a finder of its own.
                spec = importlib.util.find_spec(prefix)
        if spec is None:
            break
        places = list(spec.submodule_search_locations or ())
        if spec.origin is not None and spec.has_location:
            files[prefix] = Path(spec.origin)
    return files


def code_of(path: str) -> Code:
    """Return what identifies the code at ``module.name``, without importing it.

    A copy in ``site-packages`` is identified by its package and version. Any other code is the file
    of the module and those of the modules that it imports, but for Python's own, installed packages
    and this program. ``ValueError`` that begins with ``path:`` for a module without a file, and for
    a file that cannot be read.
    """
    module = path.rpartition(".")[0]
    files = find_modules(module)
    if module not in files:
        raise ValueError(
            f"path: no package or module {module!r} is installed, nor is there one in {Path.cwd()},"
            " or it has no file; correct the path, or install it into the environment that runs"
            " the study"
        )
    _check_only_one(module.partition(".")[0], files)
    if _INSTALLED & set(files[module].parts):
        # A file there that belongs to no package is somebody's own code, which is read below.
        names = _packages().get(module.partition(".")[0])
        if names:
            return {name: version(name) for name in sorted(set(names))}
    try:
        _add_imported(files, _others() - set(files[module].parents))
        return {name: sha256_file(file) for name, file in sorted(files.items())}
    except OSError as error:
        raise ValueError(
            f"path: {error.filename} cannot be read: {error.strerror}; make it readable"
        ) from None
    except SyntaxError as error:
        raise ValueError(f"path: {error.filename}: not valid Python: {error}") from None


def _check_only_one(name: str, files: dict[str, Path]) -> None:
    """Raise ``ValueError`` if the working directory has a module of the same name as the one that
    is found first."""
    local = PathFinder.find_spec(name, [str(Path.cwd())])
    if name not in files or local is None or local.origin is None:
        return
    if Path(local.origin).resolve() != files[name].resolve():
        raise ValueError(
            f"path: {name!r} is {files[name]}, and there is another one, {local.origin}, which"
            " would not be taken; give yours another name, or remove it"
        )


_packages = cache(packages_distributions)


@cache
def _others() -> set[Path]:
    """Return where Python's own code lies, and that of this program with its optimizer."""
    ours = (
        find_modules(package)[package].parent for package in ("coupled_adam_bench", "coupled_adam")
    )
    return {Path(sysconfig.get_path("stdlib")), *ours}


def _add_imported(files: dict[str, Path], others: set[Path]) -> None:
    """Add to the files of modules those of the modules that they import, unless they are installed
    or of ``others``."""
    waiting = list(files)
    while waiting:
        module = waiting.pop()
        file = files[module]
        package = module if file.stem == "__init__" else module.rpartition(".")[0]
        for imported in _imported_names(file, package) if file.suffix == ".py" else ():
            for name, path in find_modules(imported).items():
                if name not in files and not (
                    _INSTALLED & set(path.parts) or others & set(path.parents)
                ):
                    files[name] = path
                    waiting.append(name)


def _imported_names(file: Path, package: str) -> list[str]:
    """Return the names of all that a Python file of a package imports, which are modules or lie in
    one."""
    names = []
    for node in ast.walk(ast.parse(file.read_bytes(), file)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        imported = [alias.name for alias in node.names]
        base = ""
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -node.level + 1 or None] if node.level else []
            base = ".".join(filter(None, [*above, node.module]))
        if base:
            imported = [base, *(f"{base}.{name}" for name in imported)]
        names += imported
    return names


def changed_code(path: str, known: Code) -> str | None:
    """Return the files and packages that differ between the code at ``module.name`` and ``known``;
    ``None`` if none."""
    here = code_of(path)
    changed = [name for name in sorted({*here, *known}) if here.get(name) != known.get(name)]
    return ", ".join(str(find_modules(name).get(name, name)) for name in changed) or None


@contextmanager
def compiled_anew() -> Iterator[None]:
    """Have Python compile what is imported here from its source, the bytes that were hashed.

    A compiled file of an earlier import is believed by the size and the time of its source, whose
    contents may be others. Libraries that are imported here for the first time are compiled too.
    """
    usual = sys.pycache_prefix
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder:
        sys.pycache_prefix = folder
        try:
            yield
        finally:
            sys.pycache_prefix = usual


def _shared_state() -> dict[str, str]:
    """Return in words what a module can change for a whole process as it is imported."""
    state = {"the working directory": str(Path.cwd())}
    torch: Any = sys.modules.get("torch")  # which this module does not import itself
    if torch is not None:
        state |= {
            "torch's default dtype": str(torch.get_default_dtype()),
            "torch's default device": str(torch.get_default_device()),
            "torch's precision of products": torch.get_float32_matmul_precision(),
            "whether torch computes gradients": str(torch.is_grad_enabled()),
        }
    return state


def failure(error: BaseException) -> str:
    """Return what own code raised, in parentheses, and the line of its file at which it did."""
    said = f"({type(error).__name__}: {error})"
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_own(Path(frame.filename))
    ]
    if not own:
        return said
    return f"{said} at line {own[-1].lineno} of {Path(own[-1].filename).name}"


def _is_own(file: Path) -> bool:
    """Tell whether a file is neither of Python, nor installed, nor of this program."""
    return file.is_file() and not (_INSTALLED & set(file.parts) or _others() & set(file.parents))


def import_object(path: str) -> Any:
    """Import and return what ``module.name`` names; ``ValueError`` that begins with ``path:`` if
    there is nothing, or if the import changes what other code of this process rests on."""
    module_name, _, name = path.rpartition(".")
    before = _shared_state()
    try:
        with compiled_anew():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may raise anything, and may be a script
        raise ValueError(
            f"path: cannot import {module_name!r} {failure(error)}; "
            "correct the path, or install the package where the study runs"
        ) from error
    after = _shared_state()
    for what, value in before.items():
        if after[what] != value:
            raise ValueError(
                f"path: the import of {module_name!r} changes {what} from {value} to {after[what]},"
                " so that what is compared would differ in this, too; take it out of the module, or"
                " do it in a function"
            )
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, vars(module), n=1)
        raise ValueError(
            f"path: {module_name!r} has no"
            f" {name!r}{f'; did you mean {close[0]!r}?' if close else ''}"
        )
    return getattr(module, name)
