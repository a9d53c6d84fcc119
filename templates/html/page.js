
// A click on a header sorts a table, and what is folded opens for print. The page needs none of this.
"use strict";
const SIZES = {K: 1e3, M: 1e6, B: 1e9, T: 1e12};
function keyOf(cell) {
  const text = cell.textContent.trim().replace("\u2212", "-").replaceAll(",", "");
  const number = text.match(/^(?:< )?(-?[0-9.]+(?:e[+-]?[0-9]+)?)([KMBT](?![a-z]))?/);
  if (text === "" || text === "-") return null;
  return number ? Number(number[1]) * (SIZES[number[2]] ?? 1) : text;
}
function compare(a, b) {
  if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
  return typeof a === "number" ? -1 : 1;
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
      cell.rowSpan = 1;
    }
    row.classList.remove("rule");
  });
  return rows;
}
function sort(table, header) {
  const column = header.cellIndex, up = header.ariaSort !== "ascending";
  const rows = giveEachRowItsCells(table).map((row) => [keyOf(row.cells[column]), row]);
  rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : (up ? 1 : -1) * compare(a, b));
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
