"""Who may import whom: the layers of the package, read from its source and seen in fresh
interpreters."""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "coupled_adam_bench"
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / PACKAGE
# A package on the floor above all of these.
REGISTRY = "coupled_adam_registry"

# The floors of the house, from the ground up. A folder may import those on lower floors, and no
# other on its own.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("__version__",),
    ("machine",),
    ("store",),
    ("study",),
    ("records", "data", "models", "optim"),
    ("training", "evaluation"),
    ("results",),
    ("page",),
    ("statistics",),
    ("report",),
    ("tracking", "tools"),
    ("cli",),
    ("__main__",),
)
MAY_IMPORT = {
    folder: {below for floor in FLOORS[:height] for below in floor}
    for height, folders in enumerate(FLOORS)
    for folder in folders
} | {"": {"tools"}}  # the package hands out `compare` when it is asked for
# What planning and its folders stand on.
BASE = {"machine", "store", "study"}
# The only areas that may name these libraries at all, in a function too.
ONLY_IN = {
    "mlflow": {"tracking"},
    "lm_eval": {"evaluation"},
    "snakemake": set(),
    "statsmodels": set(),  # an oracle of the tests, whose import takes half a second
    "torch": {"machine", "models", "optim", "training", "evaluation", "tools"},
    "transformers": set(),  # its import takes a second, and reads every file of its models
    "datasets": {"data", "evaluation", "tools"},
    "pyarrow": {"data"},
    "matplotlib": {"report", "tools"},
    "jinja2": {"report"},
}

DOTTED = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)*):([A-Za-z_]\w*)")
# The lowest floor declares what there is, and so names what stands above it: stages, statistics,
# sections, and the classes of optimizers.
CATALOGUE = ("study.catalogue.", "study.settings.optimizers.")

MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    .removesuffix("__init__")
    .rstrip("."): path
    for path in sorted(SOURCE.rglob("*.py"))
}
REGISTRY_SOURCE = ROOT / "packages" / "coupled-adam-registry" / "src" / REGISTRY
REGISTRY_MODULES = sorted(REGISTRY_SOURCE.rglob("*.py"))


def area(module: str) -> str:
    return module.split(".")[0]


def imports(module: str) -> frozenset[str]:
    """Return the full names that a module imports, at its top or in a function."""
    return imports_of(MODULES[module])


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the full names that a file imports, at its top or in a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports are not used here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@cache
def dotted(module: str) -> frozenset[tuple[str, str]]:
    """Return as module and name what strings of a module name as ``module:name``, of this package
    or of another one."""
    names = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if found := DOTTED.fullmatch(node.value):
            path, name = found.groups()
            # Strings of this package leave its name out, but for those of optimizers.
            names.add((f"{PACKAGE}.{path}" if path in MODULES else path, name))
    return frozenset(names)


def test_the_package_is_found():
    assert len(MODULES) > 20
    assert "optim.build" in MODULES
    assert "" in MODULES


@pytest.mark.parametrize("module", list(MODULES), ids=lambda name: name or PACKAGE)
def test_a_module_imports_only_its_own_area_and_those_below(module):
    assert area(module) in MAY_IMPORT, f"{module}: a new folder needs a place in FLOORS"
    inner = {
        area(name.removeprefix(f"{PACKAGE}."))
        for name in imports(module)
        if name.startswith(f"{PACKAGE}.")
    }
    assert inner <= MAY_IMPORT[area(module)] | {area(module)}


def test_a_dotted_name_is_an_import():
    """What a string names is imported when it is used, so the same floors hold; the catalogue alone
    names what stands above it."""
    found = [(module, *name) for module in MODULES for name in dotted(module)]
    assert len(found) > 30
    for module, path, name in found:
        assert hasattr(importlib.import_module(path), name), f"{module}: {path}:{name}"
        inner = path.removeprefix(f"{PACKAGE}.")
        if inner in MODULES and not module.startswith(CATALOGUE):
            assert area(inner) in MAY_IMPORT[area(module)] | {area(module)}, f"{module}: {path}"


@pytest.mark.parametrize("module", list(MODULES), ids=lambda name: name or PACKAGE)
def test_a_name_is_imported_in_three_places_only(module):
    """Elsewhere a string could be an arrow that the test above does not see."""
    source = MODULES[module].read_text(encoding="utf-8")
    is_used = re.search(r"\b(import_module|__import__|resolve_name)\b", source) is not None
    assert is_used == (module in {"records.stored", "study.plan.dotted", "optim.build"})


@pytest.mark.parametrize("library", list(ONLY_IN))
def test_a_library_is_named_only_where_it_belongs(library):
    users = {
        area(module)
        for module in MODULES
        if any(name == library or name.startswith(f"{library}.") for name in imports(module))
    }
    assert users <= ONLY_IN[library]


def test_the_registry_stands_above_the_bench():
    """The bench runs without the registry: one module asks for it, in functions."""
    users = {
        module
        for module in MODULES
        if any(name.split(".")[0] == REGISTRY for name in imports(module))
        or any(path.split(".")[0] == REGISTRY for path, _ in dotted(module))
    }
    assert users == {"cli.registry"}
    probe = f"import sys; from {PACKAGE}.cli import registry; sys.exit('{REGISTRY}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


@pytest.mark.parametrize(
    "path", REGISTRY_MODULES, ids=lambda path: path.relative_to(REGISTRY_SOURCE).as_posix()
)
def test_the_registry_imports_the_bench_and_no_heavy_library(path):
    names = imports_of(path)
    assert not {name.split(".")[0] for name in names} & ONLY_IN.keys()
    # Of the command line it knows how a command is declared.
    of_the_command_line = {name for name in names if name.startswith(f"{PACKAGE}.cli")}
    assert all(name.startswith(f"{PACKAGE}.cli.command.") for name in of_the_command_line)


def loaded_by(modules: list[str], libraries: tuple[str, ...]) -> str:
    """Import modules in turn in a fresh interpreter and return the first that loads one of the
    libraries, and which. Those of the bench are named without it."""
    names = {
        module: module if module.startswith(REGISTRY) else f"{PACKAGE}.{module}".rstrip(".")
        for module in modules
    }
    code = "\n".join(
        (
            "import importlib, sys",
            f"for module, name in {names!r}.items():",
            "    importlib.import_module(name)",
            f"    found = [library for library in {libraries!r} if library in sys.modules]",
            "    if found:",
            "        sys.exit(f'{module}: {found}')",
        )
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    return result.stderr.strip()


def modules_of(*areas: str) -> list[str]:
    return [module for module in MODULES if area(module) in areas]


HEAVY = ("torch", "lm_eval", "mlflow", "snakemake", "transformers", "datasets", "matplotlib")


def test_what_a_dry_run_needs_is_light():
    modules = [*modules_of("", *BASE, "cli"), "tracking.importing", "tracking.place"]
    modules += ["evaluation.settings", "training.checks", "data.check", "report.figures"]
    modules.append(f"{REGISTRY}.commands")
    assert loaded_by(modules, (*HEAVY, "numpy", "scipy", "pandas", "pyarrow", "jinja2")) == ""


def test_tables_and_tests_need_no_torch():
    modules = modules_of("results", "statistics", "report")
    drawing = {module for module in modules if module.startswith("report.figures.")}
    assert loaded_by([module for module in modules if module not in drawing], HEAVY) == ""
    assert (
        loaded_by(sorted(drawing), tuple(library for library in HEAVY if library != "matplotlib"))
        == ""
    )


def test_results_and_statistics_need_nothing_that_renders():
    # The distributions of scipy.stats take half a second, for the few statistics that need them.
    libraries = (*HEAVY, "jinja2", "scipy.stats")
    assert loaded_by(modules_of("results", "statistics"), libraries) == ""


def test_training_and_evaluation_start_without_the_pipeline():
    modules = modules_of("optim", "models", "data", "training", "evaluation")
    modules += [module for module in MODULES if module.startswith("tools.measure")]
    modules.remove("evaluation.harness_model")  # which functions import
    libraries = (
        "lm_eval",
        "mlflow",
        "snakemake",
        "transformers",
        "datasets",
        "pyarrow",
        "pandas",
        "matplotlib",
    )
    assert loaded_by(modules, libraries) == ""


def test_lm_eval_is_given_a_model_without_transformers():
    """lm-eval itself imports it for its own models alone."""
    modules = ["evaluation.downstream", "evaluation.harness_model"]
    libraries = ("transformers", "mlflow", "snakemake", "matplotlib", "torch.distributed.tensor")
    assert loaded_by(modules, libraries) == ""


def test_what_the_stages_on_a_cpu_start_with():
    """The stage `embeddings` needs no torch, and no other stage what only training does."""
    assert loaded_by(["evaluation.stage", "evaluation.embedding_geometry"], HEAVY) == ""
    modules = ["evaluation.stage", "evaluation.held_out_loss", "models.export"]
    libraries = ("torch.distributed.tensor", "torch._dynamo", "sympy", "transformers", "pandas")
    assert loaded_by(modules, libraries) == ""


def test_a_job_starts_without_reading_source() -> None:
    """Pydantic would read the docstrings of settings from it, in a quarter of the time that all
    jobs start in."""
    program = f"import linecache, {PACKAGE}.cli; print(sorted(linecache.cache))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_the_probe_sees_what_is_loaded():
    assert loaded_by(["store.paths", "study.settings"], ("yaml",)) == "study.settings: ['yaml']"
