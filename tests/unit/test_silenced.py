"""Each warning of a library that the code silences stands in a table, with what stands in its
place."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("silenced.md")
SOURCES = (
    "src",
    "packages/coupled-adam/src",
    "packages/embedding-geometry/src",
    "packages/coupled-adam-registry/src",
    "rules",
    "Snakefile",
)
SILENCING = re.compile(
    r"\b(?:(?<=logging\.)(disable)(?=\()"
    r"|(setLevel|addFilter|captureWarnings|filterwarnings|simplefilter|catch_warnings)(?=\()"
    r"|(disable_progress_bars?|set_verbosity\w*|enable_default_handler|errstate)(?=\()"
    r"|(redirect_stdout|redirect_stderr|dup2)(?=\()|(disable_tqdm)(?==True)"
    r"|(TQDM_\w+|PYTHONWARNINGS|\w+_VERBOSITY|\w*LOG_LEVEL)(?=\"[],])"
    r"|(_USUAL|_UNTOLD)(?= = ))"
)
"""Calls that keep a library from saying something, and lists of what is not shown."""
CLEARED = "machine/surroundings.py"
"""What an environment variable may decide stands there, and on its own page."""


def silenced() -> dict[str, set[str]]:
    """The calls of each file that silence something."""
    found: dict[str, set[str]] = {}
    for source in SOURCES:
        path = ROOT / source
        files = [path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.smk")]
        for file in files:
            calls = {next(filter(None, groups)) for groups in SILENCING.findall(file.read_text())}
            if calls and not file.as_posix().endswith(CLEARED):
                found[file.relative_to(ROOT).as_posix()] = calls
    return found


def rows() -> list[tuple[str, set[str], str, str]]:
    """File, calls, what is silenced and what stands in its place, of each row of the table."""
    text = PAGE.read_text()
    found = []
    for line in text.splitlines():
        if line.startswith("| `"):
            where, what, place = (cell.strip() for cell in line.strip("|").split(" | "))
            file, _, calls = where.partition("`: ")
            found.append((file.strip("`"), set(re.findall(r"`(\w+)`", calls)), what, place))
    return found


def test_the_table_has_all_that_is_silenced():
    named: dict[str, set[str]] = {}
    for file, calls, _, _ in rows():
        named.setdefault(file, set()).update(calls)
    assert named == silenced()


def test_a_check_of_ours_stands_in_each_place():
    text = "".join(
        path.read_text() for source in SOURCES[:4] for path in (ROOT / source).rglob("*.py")
    )
    for file, _, what, place in rows():
        checks = [name for name in re.findall(r"`(\w+)`", place) if name != "acc"]
        assert what and checks, file
        for name in checks:
            assert re.search(rf"\b(def|class) {name}\b", text), f"{file}: {name}"


def test_libraries_that_are_named_as_not_silenced_are_not():
    libraries = r"transformers|matplotlib|tokenizers|pyarrow"
    for file in silenced():
        text = (ROOT / file).read_text()
        assert not re.search(rf"getLogger\(\W({libraries})\b", text), file
        assert not re.search(rf"({libraries})\.(utils\.)?logging", text), file
