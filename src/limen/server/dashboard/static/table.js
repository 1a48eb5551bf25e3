// A table of any length: only the rows in sight are there, and they are used again while one scrolls.
//
//   const rules = table({
//     caption: "Rules",
//     columns: [
//       { name: "rule", title: "Rule", width: "16rem", sort: true, cell: (row) => h("a", { href: row.at }, row.name) },
//       { name: "denied", title: "Denied", width: "6rem", class: "number", sort: true, text: (row) => rate(row.denied) },
//       { name: "trend", title: "Trend", make: () => ({ node, show: (row) => {} }) },
//     ],
//     sorted: "-denied", onsort: (sorted) => {},
//   });
//   rules.show(rows);   // other rows, or another order
//   rules.refresh();    // the same rows, with other numbers: texts change in place
//   rules.close();

import { fill, h, say } from "./dom.js";

const BEYOND = 8;

/** Make a table. A column has `text(row)`, or `cell(row)` for a node made anew, or `make()`, which
returns {node, show(row)} to be used for one row after the other. All rows have one height. */
export function table({ caption, columns, rowHeight = 40, minWidth = "", maxHeight = "", sorted = "", onsort, rowClass }) {
  const heads = columns.map((column) => head(column, () => turn(column.name)));
  const above = spacer(columns.length);
  const below = spacer(columns.length);
  const body = h("tbody", null, above, below);
  const whole = h("table", { "aria-rowcount": "1" },
    h("caption", { class: "unseen" }, caption),
    h("colgroup", null, columns.map(({ width }) => styled(h("col"), { width: width ?? "" }))),
    h("thead", null, h("tr", { "aria-rowindex": "1" }, heads.map((each) => each.node))),
    body);
  styled(whole, { tableLayout: "fixed", width: "100%", minWidth });
  const box = h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": caption }, whole);
  // The box scrolls, so the page can tell what is in sight without asking for the layout of each row.
  styled(box, { overflow: "auto", maxHeight: maxHeight || "max(20rem, calc(100vh - 15rem))" });

  let rows = [];
  let pool = [];
  let first = 0;
  let frame = 0;
  let seen = 600;

  function turn(name) {
    sorted = sorted === name ? `-${name}` : name;
    mark();
    onsort?.(sorted);
  }

  function mark() {
    for (const each of heads) each.mark(sorted);
  }

  function line(index) {
    const tr = pool[index - first];
    const row = rows[index];
    tr.node.hidden = row === undefined;
    if (row === undefined) return;
    tr.node.setAttribute("aria-rowindex", index + 2);
    if (rowClass) tr.node.className = rowClass(row);
    for (const cell of tr.cells) cell.show(row);
  }

  /** Have as many rows as fit into the box; most of the time, there are enough. */
  function stretch() {
    const wanted = Math.min(rows.length, Math.ceil(seen / rowHeight) + 2 * BEYOND);
    while (pool.length < wanted) {
      const made = tableRow(columns, rowHeight);
      pool.push(made);
      below.before(made.node);
    }
    while (pool.length > wanted) pool.pop().node.remove();
  }

  /** Show the rows from `index` on. Rows that stay in sight are not touched: they may have the focus. */
  function place(index, anew) {
    const last = Math.max(0, rows.length - pool.length);
    const next = Math.min(Math.max(0, index), last);
    const step = next - first;
    first = next;
    if (anew || Math.abs(step) >= pool.length) {
      for (let n = 0; n < pool.length; n += 1) line(first + n);
    } else if (step > 0) {
      const moved = pool.splice(0, step);
      for (const tr of moved) below.before(tr.node);
      pool.push(...moved);
      for (let n = pool.length - step; n < pool.length; n += 1) line(first + n);
    } else if (step < 0) {
      const moved = pool.splice(step);
      for (const tr of moved.toReversed()) above.after(tr.node);
      pool.unshift(...moved);
      for (let n = 0; n < -step; n += 1) line(first + n);
    }
    tall(above, first * rowHeight);
    tall(below, (rows.length - first - pool.length) * rowHeight);
  }

  function look() {
    frame = 0;
    place(Math.floor(box.scrollTop / rowHeight) - BEYOND, false);
  }

  function onscroll() {
    if (!frame) frame = requestAnimationFrame(look);
  }

  box.addEventListener("scroll", onscroll, { passive: true });
  const watch = new ResizeObserver(() => {
    if (box.clientHeight === seen || !box.clientHeight) return;
    seen = box.clientHeight;
    stretch();
    place(Math.floor(box.scrollTop / rowHeight) - BEYOND, true);
  });
  watch.observe(box);
  mark();

  return {
    node: box,
    /** Show other rows, or the same in another order; `toTop` when it is another list. */
    show(list, { toTop = false } = {}) {
      rows = list;
      whole.setAttribute("aria-rowcount", rows.length + 1);
      if (toTop) box.scrollTop = 0;
      stretch();
      place(toTop ? 0 : Math.floor(box.scrollTop / rowHeight) - BEYOND, true);
    },
    /** Say the rows in sight again. */
    refresh() {
      for (let n = 0; n < pool.length; n += 1) line(first + n);
    },
    /** Mark another column as the sorted one. */
    sort(name) {
      sorted = name;
      mark();
    },
    close() {
      watch.disconnect();
      cancelAnimationFrame(frame);
      box.removeEventListener("scroll", onscroll);
    },
  };
}

function head(column, turn) {
  const sign = h("span", { "aria-hidden": "true" });
  const title = column.sort
    ? styled(h("button", { class: "quiet", type: "button", onclick: turn }, column.title, sign),
      { marginInline: "-8px", minHeight: "24px", padding: "0 8px", gap: "0" })
    : column.title;
  const node = h("th", { scope: "col", class: column.class ?? null }, title);
  return {
    node,
    mark(sorted) {
      const way = sorted === column.name ? "ascending" : sorted === `-${column.name}` ? "descending" : "";
      if (way) node.setAttribute("aria-sort", way);
      else node.removeAttribute("aria-sort");
      say(sign, { ascending: " ↑", descending: " ↓" }[way] ?? "");
      // An empty one would still keep its distance, and numbers would not stand below their heading.
      sign.hidden = way === "";
    },
  };
}

function tableRow(columns, rowHeight) {
  const cells = columns.map(cell);
  const node = h("tr", null, cells.map((each) => each.node));
  styled(node, { height: `${rowHeight}px` });
  return { node, cells };
}

function cell(column) {
  const node = h(column.head ? "th" : "td", { class: column.class ?? null, scope: column.head ? "row" : null });
  styled(node, { overflow: "hidden", textOverflow: "ellipsis", whiteSpace: "nowrap", verticalAlign: "middle", paddingBlock: "0" });
  if (column.make) {
    const made = column.make();
    node.append(made.node);
    return { node, show: made.show };
  }
  if (column.cell) return { node, show: (row) => fill(node, column.cell(row)) };
  return { node, show: (row) => say(node, column.text(row)) };
}

function spacer(columns) {
  return h("tr", { "aria-hidden": "true", hidden: true }, styled(h("td", { colspan: columns }), { padding: "0", border: "0" }));
}

function tall(row, height) {
  row.hidden = height <= 0;
  row.style.height = `${Math.max(0, height)}px`;
}

function styled(element, style) {
  Object.assign(element.style, style);
  return element;
}
