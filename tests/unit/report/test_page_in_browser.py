"""The report in a real browser: accessibility by axe-core, sorting by a click and by keys, and HTML
that a strict parser takes."""

import json
import re
from collections.abc import Callable
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import html5lib
import pytest

from coupled_adam_bench.page.blocks import Column, Grid
from coupled_adam_bench.report.make import write_page
from coupled_adam_registry.page import write_registry

_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run")

# Runs in the page, with all that is folded open, and leaves what it finds in place of the page. Of
# the rows of a table that differ in nothing but text, axe sees one: it looks at each cell for
# milliseconds.
_CHECK = """
<script>AXE</script>
<script>
const table = document.querySelector("table.results");
const nBold = () => table.querySelectorAll("tbody strong").length;
const bold = [nBold()];
const header = table.querySelector("thead th:nth-child(4)");
header.querySelector("[role=button]").click();
const column = [...table.tBodies[0].rows].map((row) => row.cells[3].textContent);
bold.push(nBold());
const direction = header.getAttribute("aria-sort");
const heads = [...new Set([...table.querySelectorAll("tbody th")].map((each) => each.scope))];
const kind = (row) => row.outerHTML.replace(/>[^<]*</g, "><").replace(/ (id|href|title|data-[a-z-]+)="[^"]*"/g, "");
for (const each of document.querySelectorAll("table")) {
  const seen = new Set();
  for (const row of [...each.rows]) {
    if (seen.has(kind(row))) row.remove();
    seen.add(kind(row));
  }
}
dispatchEvent(new Event("beforeprint"));
axe.run(document, {resultTypes: ["violations"]}).then((found) => {
  const violations = found.violations.map(({id, impact, nodes}) => [id, impact, nodes.length, nodes[0].html]);
  leave({violations, direction, column, heads, bold});
});
</script>
"""
_LEAVE = """
<script>
function leave(found) {
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
}
</script>
"""
# Sorts a column of one table after the other, by a click and by keys.
_SORT = """
<script>
const found = [];
for (const table of document.querySelectorAll("table")) {
  const header = table.querySelector("thead th:last-child"), button = header.querySelector("[role=button]");
  const press = (key) => button.dispatchEvent(new KeyboardEvent("keydown", {key}));
  const column = () => [header.ariaSort, ...[...table.tBodies[0].rows].map((row) => row.cells[1].textContent)];
  press("Tab");
  const untouched = header.ariaSort;
  button.click();
  const ascending = column();
  press("Enter");
  const descending = column();
  press(" ");
  found.push({untouched, ascending, descending, again: column()});
}
leave(found);
</script>
"""
_WIDTHS = """
<script>
const wide = [...document.querySelectorAll(".scroll")].filter((each) => each.scrollWidth > each.clientWidth);
const page = document.documentElement;
leave({page: [page.scrollWidth, page.clientWidth], wide: wide.map((each) => each.ariaLabel)});
</script>
"""
# What a column may have, in the order of the values.
_COLUMNS = {
    "means with their spread": [
        "\u22120.61 (0)",
        "0.30 (1)",
        "5.41 (15)",
        "5.60 (1)",
        "1.9e+07\u2020",
    ],
    "missing last": ["4.7", "5.2", "", "-", "[-, -]"],
    "sizes": ["99.3K", "168K", "1.46M", "0.9B", "1T"],
    "memory": ["238 kB", "4.26 MB", "238 MB", "1.25 TB"],
    "times": ["45 s", "2 min", "89 min", "1.6 h", "2.5 days"],
    "intervals": ["[\u22121e\u221204, 0.3]", "[2e\u221205, 1]", "[0.0895, 0.119]", "[1.6, 2.39]"],
    "p-values": ["< 0.0001", "0.0001", "0.0036", "0.9320"],
    "counts": ["3 of 3", "97 / 97", "1,000", "330,000 to 391,000"],
    "numbers before words": ["3", "11", "not tested", "-"],
    "names": ["Adam, f = 3", "Adam, f = 100", "SGD, f = 20", "SGD, f = 100"],
}


@pytest.fixture(scope="module")
def page(fake: Any) -> str:
    text = (fake.study_dir / "report" / "index.html").read_text(encoding="utf-8")
    return re.sub(
        r'src="data:[^"]*"', 'src="data:,"', text
    )  # without its figures, which take the time


def test_a_strict_parser_takes_the_page(page):
    parser = html5lib.HTMLParser(strict=True)
    parser.parse(page)
    assert parser.errors == []


def test_each_id_is_there_once(page):
    ids = re.findall(r'<[^>]* id="([^"]*)"', page)
    assert len(ids) > 10
    assert len(ids) == len({*ids})


@pytest.fixture(scope="module")
def found_in(
    chromium: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Return what opens a page in chromium and gives what a script leaves of it."""

    def run(page: str, script: str, *options: str) -> Any:
        folder = tmp_path_factory.mktemp("browser")
        allowed = re.sub(r"<meta http-equiv=[^>]*>", "", page)  # it forbids every other script
        copy = folder / "page.html"
        copy.write_text(allowed.replace("</body>", _LEAVE + script + "</body>"), encoding="utf-8")
        profile = f"--user-data-dir={folder}/profile"
        dom = chromium(
            [
                *_OPTIONS,
                *options,
                profile,
                "--virtual-time-budget=60000",
                "--dump-dom",
                copy.as_uri(),
            ],
            timeout=300,
        ).stdout
        (found,) = re.findall(r'<pre id="found">(.*)</pre>', dom, re.DOTALL)
        return json.loads(unescape(found))

    return run


def test_axe_finds_nothing_and_a_click_sorts(page, found_in):
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    result = found_in(page, _CHECK.replace("AXE", axe))
    assert result["violations"] == []
    assert result["direction"] == "ascending"
    texts = [text.replace("\N{MINUS SIGN}", "-") for text in result["column"] if text != "-"]
    numbers = [float(text.split()[0]) for text in texts]
    assert len(numbers) > 2 and numbers == sorted(numbers)
    # A header of several rows would be read for all rows below it, which it is not of any more.
    assert result["heads"] == ["row"]
    before, after = result["bold"]
    assert before == after > 0


def test_columns_are_sorted_by_value_with_what_is_missing_last(templates, tmp_path, found_in):
    names, grids = [Column[tuple[int, str]]("row", lambda row: str(row[0]), "row")], []
    for name, texts in _COLUMNS.items():
        column = Column[tuple[int, str]](name, lambda row: row[1])
        grids.append(Grid(name, [*names, column], list(enumerate(texts))[::-1]))
    section = {"id": "all", "title": "All", "is_front": True}
    write_page(
        tmp_path / "page.html",
        templates,
        "registry.html.j2",
        {},
        sections=[(section, grids)],
        n_bundles=0,
        n_cells=0,
        day="today",
    )
    found = found_in((tmp_path / "page.html").read_text(encoding="utf-8"), _SORT)
    for texts, sorted_ in zip(_COLUMNS.values(), found, strict=True):
        missing = [text for text in texts if text in ("", "-", "[-, -]")]
        words = [text for text in texts if text == "not tested"]
        others = [text for text in texts if text not in missing + words]
        # Rows that tie keep the order that they had.
        ascending = [*others, *words, *missing[::-1]]
        assert sorted_["untouched"] is None
        assert sorted_["ascending"] == ["ascending", *ascending]
        assert sorted_["descending"] == ["descending", *others[::-1], *words, *missing[::-1]]
        assert sorted_["again"] == sorted_["ascending"]


def test_the_registry_is_whole_at_1280_pixels(templates, tmp_path, found_in):
    registry = Path(__file__).parents[3] / "registry"
    assert write_registry(registry, tmp_path / "registry.html", templates) == []
    page = (tmp_path / "registry.html").read_text(encoding="utf-8")
    found = found_in(page, _WIDTHS, "--window-size=1280,900")
    width, seen = found["page"]
    assert width == seen <= 1280
    assert found["wide"] == []


def test_the_list_of_contents_has_the_titles_of_the_sections(page):
    contents, rest = page.split("</nav>", 1)
    listed = re.findall(r'<li[^>]*><a href="#([^"]*)">(.*?)</a>', contents)
    assert listed[0] == ("verdict", "Who is better, and where")
    assert [title for _, title in listed] == re.findall(r"<h2>(.*?)</h2>", rest)
    assert all(f'<section id="{name}">' in rest for name, _ in listed)
