
// A click on a header sorts a table, and what is folded opens for print. The page needs none of this.
"use strict";
const SCALES = {
  K: 1e3, M: 1e6, B: 1e9, T: 1e12, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, min: 60, h: 3600, days: 86400,
};
// The key of "5.41 (15)", "[0.1, 0.2]", "168K" and "4.26 MB" is the first number, times its unit; that of a missing
// number is "", which comes last. A number below the last digit, "< 0.0001", comes before that digit.
function keyOf(cell) {
  const text = cell.textContent.trim().replaceAll("\u2212", "-").replaceAll(/,(?=[0-9]{3})/g, "");
  if (/^\[?-?(,|$)/.test(text)) return "";
  const found = text.match(/^\[?(< )?(-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)(?: ?([A-Za-z]+))?/);
  if (!found) return text;
  const [, below, number, unit] = found;
  return Number(number) * (SCALES[unit] ?? 1) * (below ? 0.999 : 1);
}
function placeOf(key) {
  if (key === "") return 2;
  return typeof key === "number" ? 0 : 1;
}
function compare(a, b) {
  return typeof a === "number" ? a - b : a.localeCompare(b, "en", {numeric: true});
}
function giveEachRowItsCells(table) {
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
  rows.forEach((row, at) => {
    for (const cell of [...row.cells]) {
      const place = [...row.cells].indexOf(cell);
      for (let below = cell.rowSpan - 1; below > 0; below--) {
        const copy = cell.cloneNode(true);
        copy.rowSpan = 1;
        rows[at + below].insertBefore(copy, rows[at + below].cells[place] ?? null);
      }
      if (cell.scope === "rowgroup") cell.scope = "row";
      cell.rowSpan = 1;
    }
    row.classList.remove("rule");
  });
  return rows;
}
function sort(table, header) {
  const column = header.cellIndex, up = header.ariaSort !== "ascending";
  const rows = giveEachRowItsCells(table).map((row) => [keyOf(row.cells[column]), row]);
  rows.sort(([a], [b]) => placeOf(a) - placeOf(b) || (up ? 1 : -1) * compare(a, b));
  table.tBodies[0].append(...rows.map(([, row]) => row));
  while (table.tBodies.length > 1) table.tBodies[1].remove();
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
}
for (const table of document.querySelectorAll("table")) {
  for (const header of table.querySelectorAll("thead th")) {
    const button = document.createElement("span");  // a real button is lost where print repeats a header
    button.role = "button";
    button.tabIndex = 0;
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(table, header));
    button.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort(table, header);
    });
    header.append(button);
  }
}
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const folded of opened) folded.open = true;
});
addEventListener("afterprint", () => { for (const folded of opened) folded.open = false; });
