"""Who may import whom: the floors of the house, read from its source and seen in new processes."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
from tiny import REPOSITORY

SOURCE = REPOSITORY / "src/coupled_adam_bench"
# From the ground up: a room imports itself and those before it.
FLOORS = (
    *("machine", "store", "study", "data", "models", "optim", "geometry", "training"),
    *("evaluation", "results", "statistics", "report", "tracking", "tools", "", "cli", "__main__"),
)
HEAVY = {"torch", "numpy", "pandas", "scipy", "matplotlib", "mlflow", "lm_eval", "transformers"}
HEAVY |= {"datasets", "snakemake", "tokenizers", "pyarrow"}
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


def room(module: str) -> str:
    """Return the folder of a module, which is empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def modules_of(*rooms: str) -> list[str]:
    return [module for module in MODULES if room(module) in rooms]


def imported(module: str) -> set[str]:
    """Return the modules of the house that a module imports, at its top or in a function."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports are not used here"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found & (MODULES.keys() - {"coupled_adam_bench"})


def loaded_by(code: str) -> set[str]:
    """Return which heavy libraries a new process has loaded at the end of this code."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    return HEAVY & set(done.stdout.splitlines()[-1].split())


def imports_of(modules: list[str]) -> str:
    assert modules
    return f"import {', '.join(modules)}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_lead_downwards(module: str) -> None:
    height = FLOORS.index(room(module))
    above = {name for name in imported(module) if FLOORS.index(room(name)) > height}
    assert not above


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: imported(module) - {module} for module in MODULES}
    TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_numbers_tests_and_report_need_no_torch() -> None:
    found = loaded_by(imports_of(modules_of("results", "statistics", "report")))
    assert not found & {"torch", "lm_eval", "transformers", "datasets", "mlflow"}


def test_geometry_needs_no_torch() -> None:
    assert "torch" not in loaded_by(imports_of(modules_of("geometry")))


def test_a_plan_needs_neither_torch_nor_pandas() -> None:
    files = [REPOSITORY / "Snakefile", *(REPOSITORY / "rules").glob("*.smk")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    of_rules = [line for line in lines if line.startswith("from coupled_adam_bench")]
    assert of_rules
    planning = imports_of(modules_of("machine", "store", "study"))
    assert not loaded_by("\n".join([planning, *of_rules])) & {"torch", "pandas", "lm_eval"}


@pytest.mark.parametrize("command", ["--help", "compare --help", "plan --help", "--version"])
def test_help_loads_nothing_heavy(command: str) -> None:
    run = f"with contextlib.suppress(SystemExit):\n    main({command.split()!r})"
    assert not loaded_by(f"import contextlib\nfrom coupled_adam_bench.cli import main\n{run}")


def test_the_package_offers_compare_and_is_light() -> None:
    assert not loaded_by("import coupled_adam_bench")
    assert not loaded_by("import coupled_adam_bench; 'compare' in dir(coupled_adam_bench)")
