// Sort, search and filter the table of models, show columns, and draw the plot. The URL contains the choice, so that a
// view can be linked.
"use strict";
const table = document.getElementById("models");
if (table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => head.textContent);
  const search = document.getElementById("search");
  const filters = ["method", "backbone"].map((id) => document.getElementById(id));
  const cost = document.getElementById("cost");
  const boxes = [...document.querySelectorAll(".tasks input")];
  const choice = new URLSearchParams(location.hash.slice(1));
  const text = (row, column) => row.cells[names.indexOf(column)].textContent;

  const compare = (first, second) => {
    // A name may begin with a number too, such as a date.
    const numbers = [first, second].map((cell) => (/^-?[\d.]+(\s±.*)?$/.test(cell) ? Number.parseFloat(cell) : NaN));
    return numbers.some(Number.isNaN)
      ? first.localeCompare(second, undefined, { numeric: true }) : numbers[0] - numbers[1];
  };

  const sort = () => {
    const column = choice.get("sort");
    const sign = choice.get("order") === "descending" ? -1 : 1;
    heads.forEach((head) => {
      if (head.textContent === column) head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    if (!names.includes(column)) return;
    // A row without a value comes last in either order.
    rows.sort((a, b) => !text(a, column) - !text(b, column) || sign * compare(text(a, column), text(b, column)));
    body.append(...rows);
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    const [method, backbone] = filters.map((select) => select.value);
    for (const row of rows) {
      const shown = [...row.cells].filter((cell) => !cell.hidden).map((cell) => cell.textContent.toLowerCase());
      const found = words.every((word) => shown.some((cell) => cell.includes(word)));
      const fits = !method || text(row, "methods and additions").split(" + ").includes(method);
      row.hidden = !found || !fits || Boolean(backbone && text(row, "base model") !== backbone);
    }
    document.getElementById("count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
    draw();
  };

  const showTasks = () => {
    const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
    for (const box of boxes) {
      const column = names.indexOf(box.value);
      for (const row of [table.tHead.rows[0], ...rows]) row.cells[column].hidden = !box.checked;
    }
    choose("tasks", chosen.join(","));
  };

  const add = (parent, tag, attributes, content = "") => {
    const node = document.createElementNS(parent.namespaceURI, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = content;
    return parent.appendChild(node);
  };

  // The score over the cost, on a logarithmic scale, of all visible rows that have both. The keyboard reaches the same
  // links in the table.
  const draw = () => {
    const svg = document.querySelector("#plot svg");
    const points = rows.filter((row) => !row.hidden)
      .map((row) => ({ row, x: Number.parseFloat(text(row, cost.value)), y: Number.parseFloat(text(row, "STS average")) }))
      .filter(({ x, y }) => x > 0 && !Number.isNaN(y));
    svg.replaceChildren();
    document.getElementById("plot").hidden = !points.length;
    if (!points.length) return;
    const narrow = document.documentElement.clientWidth < 640;
    const [width, height, left, bottom] = narrow ? [360, 260, 34, 24] : [960, 320, 40, 26];
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const ends = (values, pad) => [Math.min(...values) - pad, Math.max(...values) + pad];
    const [x0, x1] = ends(points.map(({ x }) => Math.log10(x)), 0.08);
    const [y0, y1] = ends(points.map(({ y }) => y), 1);
    const across = (x) => left + ((Math.log10(x) - x0) / (x1 - x0)) * (width - left - 12);
    const up = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - bottom - 12);
    const step = [1, 2, 5, 10].find((size) => (y1 - y0) / size < 10) || 20;
    for (let y = Math.ceil(y0 / step) * step; y <= y1; y += step) {
      add(svg, "line", { class: "grid", x1: left, x2: width, y1: up(y), y2: up(y) });
      add(svg, "text", { x: left - 6, y: up(y) + 4, "text-anchor": "end" }, y);
    }
    const parts = x1 - x0 < 0.7 ? [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9] : [1, 2, 5];
    for (let power = -2; power < 6; power += 1) {
      for (const x of parts.map((part) => part * 10 ** power)) {
        if (Math.log10(x) >= x0 && Math.log10(x) <= x1) {
          add(svg, "line", { class: "grid", x1: across(x), x2: across(x), y1: 0, y2: height - bottom });
          add(svg, "text", { x: across(x), y: height - 6, "text-anchor": "middle" }, Number(x.toPrecision(2)));
        }
      }
    }
    const kinds = ["recipe only", "published by its authors", "measured here", "adapter here"];
    points.sort((a, b) => kinds.indexOf(a.row.dataset.status) - kinds.indexOf(b.row.dataset.status));
    for (const { row, x, y } of points) {
      const kind = `kind-${kinds.indexOf(row.dataset.status)}`;
      const link = add(svg, "a", { href: row.cells[0].firstElementChild.getAttribute("href"), class: kind, tabindex: -1 });
      const label = `${text(row, "name")}: ${text(row, "STS average")}, ${text(row, cost.value)} ${cost.value}`;
      add(link, "circle", { cx: across(x), cy: up(y), r: narrow ? 4 : 5 });
      add(link, "title", {}, label);
    }
    const key = document.querySelector("#plot .key");
    key.replaceChildren(...[...kinds].reverse().map((kind) => {
      const item = document.createElement("span");
      item.className = `kind-${kinds.indexOf(kind)}`;
      item.textContent = kind;
      return item;
    }));
  };

  const choose = (key, value) => {
    if (value) choice.set(key, value);
    else choice.delete(key);
    history.replaceState(null, "", choice.size ? `#${choice}` : location.pathname + location.search);
  };

  heads.forEach((head) => head.firstElementChild.addEventListener("click", () => {
    const score = head.textContent === "STS average" || boxes.some((box) => box.value === head.textContent);
    const [best, worst] = score ? ["descending", ""] : ["", "descending"];  // what comes first
    const again = choice.get("sort") === head.textContent && (choice.get("order") ?? "") === best;
    choose("sort", head.textContent);
    choose("order", again ? worst : best);
    sort();
  }));
  search.addEventListener("input", () => { choose("search", search.value); filter(); });
  for (const select of [...filters, cost]) {
    select.addEventListener("change", () => { choose(select.id, select.value); filter(); });
  }
  boxes.forEach((box) => box.addEventListener("change", () => { showTasks(); filter(); }));
  addEventListener("resize", draw);
  addEventListener("hashchange", () => location.reload()); // a link to a view, opened in this tab
  search.value = choice.get("search") || "";
  for (const select of filters) select.value = choice.get(select.id) || "";
  cost.value = choice.get("cost") === "MB" ? "MB" : "CPU ms";
  const shown = (choice.get("tasks") || "").split(",");
  for (const box of boxes) box.checked = shown.includes(box.value);
  if (choice.has("tasks")) document.querySelector(".tasks").open = true;
  showTasks();
  sort();
  filter();
}
