"""The report in a real browser: accessibility by axe-core, sorting by a click, and HTML that a
strict parser takes."""

import json
import re
from collections.abc import Callable
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import html5lib
import pytest

# Runs in the page, with all that is folded open, and leaves what it finds in place of the page. Of
# the rows of a table that differ in nothing but text, axe sees one: it looks at each cell for
# milliseconds.
_CHECK = """
<script>AXE</script>
<script>
const table = [...document.querySelectorAll("table")].find((each) => each.tBodies[0].rows.length > 2);
const header = table.querySelector("thead th:nth-child(4)");
header.querySelector("[role=button]").click();
const column = [...table.tBodies[0].rows].map((row) => row.cells[3].textContent);
const direction = header.getAttribute("aria-sort");
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
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify({violations, direction, column});
});
</script>
"""


@pytest.fixture(scope="module")
def page(fake: Any) -> str:
    text = (fake.study_dir / "report" / "index.html").read_text(encoding="utf-8")
    return re.sub(
        r'src="data:[^"]*"', 'src="data:,"', text
    )  # without its figures, which take the time


def test_a_strict_parser_takes_the_page(page: str) -> None:
    parser = html5lib.HTMLParser(strict=True)
    parser.parse(page)
    assert parser.errors == []


def test_each_id_is_there_once(page: str) -> None:
    ids = re.findall(r'<[^>]* id="([^"]*)"', page)
    assert len(ids) > 10
    assert len(ids) == len({*ids})


def test_axe_finds_nothing_serious_and_a_click_sorts(
    page: str, chromium: Callable[..., Any], tmp_path: Path
) -> None:
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    allowed = re.sub(r"<meta http-equiv=[^>]*>", "", page)  # it forbids every other script
    copy = tmp_path / "page.html"
    copy.write_text(
        allowed.replace("</body>", _CHECK.replace("AXE", axe) + "</body>"), encoding="utf-8"
    )
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={tmp_path}/profile",
    ]
    dom = chromium(
        [*options, "--virtual-time-budget=60000", "--dump-dom", copy.as_uri()], timeout=300
    ).stdout
    (found,) = re.findall(r'<pre id="found">(.*)</pre>', dom, re.DOTALL)
    result = json.loads(unescape(found))
    assert [each for each in result["violations"] if each[1] in ("serious", "critical")] == []
    assert result["direction"] == "ascending"
    texts = [text.replace("\N{MINUS SIGN}", "-") for text in result["column"] if text != "-"]
    numbers = [float(text.split()[0]) for text in texts]
    assert len(numbers) > 2 and numbers == sorted(numbers)
