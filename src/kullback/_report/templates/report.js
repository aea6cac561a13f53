
"use strict";
// Tables sort by a click on a heading and are filtered by what is typed above them. Nothing else happens here.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const value = (row, i) => {
    const text = row.cells[i].dataset.sort ?? row.cells[i].textContent.trim();
    const number = text === "" ? NaN : Number(text.replace(/^(-?)inf$/, "$1Infinity"));
    return Number.isNaN(number) ? text : number;
  };
  const compare = (x, y) => {
    if (typeof x === typeof y) return typeof x === "number" ? x - y : x.localeCompare(y);
    return typeof x === "number" ? -1 : 1;
  };
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, i) => heading.querySelector("button")?.addEventListener("click", () => {
    const first = heading.classList.contains("number") ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = heading.getAttribute("aria-sort") === first ? other : first;
    for (const each of headings) each.setAttribute("aria-sort", each === heading ? order : "none");
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row, position) => ({ row, position, key: value(row, i) }));
    // What has no value comes last, whichever way the others go.
    rows.sort((a, b) => (a.key === "") - (b.key === "") || sign * compare(a.key, b.key) || a.position - b.position);
    body.append(...rows.map(({ row }) => row));
  }));
  const box = table.closest("section").querySelector("input[type=search]");
  const shown = table.closest("section").querySelector(".shown");
  box?.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += row.hidden ? 0 : 1;
    }
    shown.textContent = words.length ? `${count} of ${body.rows.length}` : "";
  });
}
