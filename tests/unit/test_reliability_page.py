"""Every test that injects a fault has a whole mark, and docs/reliability.md names all areas.

``python tests/unit/test_reliability_page.py FILE`` writes the list of all faults.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "tests", *sorted((ROOT / "packages").glob("*/tests")))
FILES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]
HEAD = """# Faults that tests inject

Each line has a fault, what the bench does about it, and the test that shows it.
"""
AREAS = (
    "settings",
    "text and data",
    "training",
    "evaluation",
    "results",
    "tracking",
    "cluster",
    "several users",
)


def faults() -> Iterator[tuple[str, str, str, str]]:
    """Yield (area, fault, outcome, test) of every test with the mark ``fault``."""
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    area, fault, outcome = (ast.literal_eval(argument) for argument in mark.args)
                    file = path.relative_to(ROOT).as_posix().removeprefix("tests/")
                    yield area, fault, outcome, f"{file}::{node.name}"


def sentence(text: str) -> str:
    """Return the text with a capital letter, unless it begins with a name such as ``run.json``, and
    a full stop."""
    text = text if re.match(r"\w+[._/]\w|lm-eval", text) else text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."


def page() -> str:
    """Return the faults as Markdown, a section for each area."""
    rows: dict[str, dict[tuple[str, str], list[str]]] = {area: {} for area in AREAS}
    for area, fault, outcome, test in faults():
        rows[area].setdefault((sentence(fault), sentence(outcome)), []).append(f"`{test}`")
    lines = [HEAD]
    for area in AREAS:
        lines += [f"## {area.capitalize()}", ""]
        for (fault, outcome), tests in sorted(
            rows[area].items(), key=lambda row: row[0][0].strip("`").lower()
        ):
            lines.append(f"- **{fault}** {outcome} {', '.join(tests)}")
        lines.append("")
    return "\n".join(lines)


def test_the_list_has_every_fault_and_no_area_is_empty():
    text = page()
    sections = re.split(r"^## .*\n", text, flags=re.MULTILINE)[1:]
    assert len(sections) == len(AREAS)
    assert all("\n- **" in section for section in sections)
    assert not [test for *_, test in faults() if f"`{test}`" not in text]


def test_the_page_about_reliability_names_the_areas():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.search(r"faults in these areas: (.*?)\.", text)
    assert named
    assert named[1].split(", ") == list(AREAS)


def test_no_mark_is_missed_and_no_fault_is_there_twice():
    texts = [path.read_text(encoding="utf-8") for path in FILES if path != Path(__file__)]
    found = list(faults())
    assert sum(text.count("mark.fault(") for text in texts) == len(found)
    names = {
        sentence(fault): {other[2] for other in found if other[1] == fault}
        for _, fault, *_ in found
    }
    assert not {fault: outcomes for fault, outcomes in names.items() if len(outcomes) > 1}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
