"use strict";
(() => {
  const table = document.getElementById("layers-table");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  const form = document.getElementById("filter");
  const text = document.getElementById("filter-text");
  const state = document.getElementById("filter-state");
  const reason = document.getElementById("filter-reason");
  const status = document.getElementById("filter-status");

  const key = (row, column) => {
    const value = row.cells[column].dataset.value;
    return value === undefined ? row.cells[column].textContent.trim().toLowerCase() : Number(value);
  };
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

  const sort = (column) => {
    const head = heads[column];
    const numeric = head.classList.contains("number");
    const first = numeric ? "descending" : "ascending";
    const other = numeric ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    heads.forEach((each) => each.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    // equal rows keep the order of the page, whatever was sorted before
    const sorted = rows.map((row, place) => [row, place]);
    sorted.sort((a, b) => sign * compare(key(a[0], column), key(b[0], column)) || a[1] - b[1]);
    body.append(...sorted.map((pair) => pair[0]));
    tell();
  };

  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row) => {
      const all = row.textContent.toLowerCase();
      row.hidden = !(
        words.every((word) => all.includes(word)) &&
        (state.value === "" || row.dataset.state === state.value) &&
        (reason.value === "" || row.dataset.reason === reason.value)
      );
    });
    tell();
  };

  const tell = () => {
    const shown = rows.filter((row) => !row.hidden);
    const share = shown.reduce((sum, row) => sum + Number(row.dataset.share), 0);
    const sorted = heads.find((head) => head.getAttribute("aria-sort") !== "none");
    const order = sorted ? `, sorted by ${sorted.textContent.trim()}, ${sorted.getAttribute("aria-sort")}` : "";
    status.textContent = `${shown.length} of ${rows.length} rows, ${(100 * share).toFixed(1)} % of the kernel time${order}`;
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(column));
    head.append(button);
  });
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  tell();
})();
