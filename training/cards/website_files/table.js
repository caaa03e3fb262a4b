// Sort, search and filter the table of models. The URL contains the choice, so that a view can be linked.
"use strict";
const table = document.getElementById("models");
if (table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const search = document.getElementById("search");
  const method = document.getElementById("method");
  const choice = new URLSearchParams(location.hash.slice(1));

  const compare = (first, second) => {
    const numbers = [first, second].map(Number.parseFloat);
    return numbers.some(Number.isNaN) ? first.localeCompare(second) : numbers[0] - numbers[1];
  };

  const sort = () => {
    const column = heads.findIndex((head) => head.textContent === choice.get("sort"));
    const sign = choice.get("order") === "descending" ? -1 : 1;
    heads.forEach((head, number) => {
      if (number === column) head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    if (column < 0) return;
    const text = (row) => row.cells[column].textContent;
    // A row without a value comes last in either order.
    rows.sort((a, b) => !text(a) - !text(b) || sign * compare(text(a), text(b)));
    body.append(...rows);
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const methods = row.cells[1].textContent.split(" + ");
      row.hidden = !words.every((word) => text.includes(word)) || (method.value && !methods.includes(method.value));
    }
    document.getElementById("count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };

  const choose = (key, value) => {
    if (value) choice.set(key, value);
    else choice.delete(key);
    history.replaceState(null, "", `#${choice}`);
  };

  heads.forEach((head) => head.firstElementChild.addEventListener("click", () => {
    const again = choice.get("sort") === head.textContent && choice.get("order") !== "descending";
    choose("sort", head.textContent);
    choose("order", again ? "descending" : "");
    sort();
  }));
  search.addEventListener("input", () => { choose("search", search.value); filter(); });
  method.addEventListener("change", () => { choose("method", method.value); filter(); });
  search.value = choice.get("search") || "";
  method.value = choice.get("method") || "";
  sort();
  filter();
}
