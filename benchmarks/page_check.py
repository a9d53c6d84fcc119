"""Checks a report in a browser: accessibility with axe-core, sorting by a click, and print with everything unfolded.

axe-core is no dependency; fetch it first, outside the repository: ``npm install axe-core`` (4.10 or later). Then::

    python benchmarks/page_check.py results/demo/report/index.html node_modules/axe-core/axe.min.js

The exit status is 1 if axe-core finds anything serious or critical, or if a table does not sort.
"""

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

RUN = """
<script>AXE</script>
<script>
const table = [...document.querySelectorAll("table")].find((each) => each.tBodies[0].rows.length > 2);
const header = table.querySelector("thead th:nth-child(4)");
header.querySelector("[role=button]").click();
const sorted = [header.getAttribute("aria-sort"), [...table.tBodies[0].rows].map((row) => row.cells[3].textContent)];
dispatchEvent(new Event("beforeprint"));
axe.run(document, {resultTypes: ["violations"]}).then((found) => {
  const violations = found.violations.map(({id, impact, nodes}) => [id, impact, nodes.length, nodes[0].html]);
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = "FOUND" + JSON.stringify({violations, sorted}) + "END";
});
</script>
"""


def check(page: Path, axe: Path) -> dict[str, list[list[object]]]:
    """Return what axe-core finds on a page with all that is folded open, and a column after a click on its header."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("chromium or google-chrome is needed")
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page.read_text(encoding="utf-8"))  # it allows no other script
    text = text.replace("</body>", RUN.replace("AXE", axe.read_text(encoding="utf-8")) + "</body>")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(text, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        command = [browser, *options, "--virtual-time-budget=60000", "--dump-dom", copy.as_uri()]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.search(r'<pre id="found">FOUND(.*)END</pre>', dom)
    if found is None:
        raise SystemExit("the browser ran no check")
    for name, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        dom = dom.replace(name, character)
    return json.loads(re.search(r'<pre id="found">FOUND(.*)END</pre>', dom)[1])  # type: ignore[index]


def main() -> int:
    """Check a page and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("axe", type=Path, help="axe.min.js")
    arguments = parser.parse_args()
    found = check(arguments.page, arguments.axe)
    for rule, impact, count, example in found["violations"]:
        print(f"{impact}: {rule}, {count} times, such as {example}")
    direction, column = found["sorted"]
    print(f"sorted {direction}: {column}")
    numbers = [float(str(text).split()[0]) for text in column if str(text) != "-"]
    serious = any(impact in ("serious", "critical") for _, impact, *_ in found["violations"])
    return 1 if serious or direction != "ascending" or numbers != sorted(numbers) else 0


if __name__ == "__main__":
    raise SystemExit(main())
