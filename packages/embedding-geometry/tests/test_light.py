"""What the package loads: nothing of the project that it is released with, and nothing heavy."""

import pkgutil
import subprocess
import sys

import embedding_geometry

MODULES = [
    f"embedding_geometry.{found.name}"
    for found in pkgutil.iter_modules(embedding_geometry.__path__)
]
FOREIGN = (
    "torch",
    "transformers",
    "scipy",
    "pandas",
    "pydantic",
    "mlflow",
    "snakemake",
    "coupled_adam_bench",
)
LIGHT = ("rows", "word_lists", "json_file", "table", "command")
"""Modules that a plan or a command line may import: without numpy and tokenizers."""


def loaded(modules: list[str], libraries: tuple[str, ...]) -> str:
    code = f"""
import importlib, sys
for module in {modules}:
    importlib.import_module(module)
print(*(name for name in {libraries} if name in sys.modules))
"""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_no_module_loads_what_is_not_required():
    assert loaded(MODULES, FOREIGN) == ""


def test_light_modules_load_no_library():
    assert (
        loaded([f"embedding_geometry.{name}" for name in LIGHT], (*FOREIGN, "numpy", "tokenizers"))
        == ""
    )
