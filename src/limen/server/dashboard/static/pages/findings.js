// What the service found wrong with rules, or hardly meant: each with its line, which is a way to it.

import { h } from "../dom.js";

const MOST = 50;

/** A list of problems and advice; `go(line)` leads to a line. Null when there is nothing to say. */
export function findingsNode(problems, advice, go) {
  const all = [...problems.map((each) => [each, "problem", "wrong"]), ...advice.map((each) => [each, "", "look again"])];
  if (!all.length) return null;
  const items = all.slice(0, MOST).map(([{ path, message, line }, kind, word]) =>
    h("li", null,
      line ? lineButton(line, go) : null, line ? " " : null,
      h("span", { class: `pill ${kind ? "denied" : "degraded"}` }, word), " ",
      path ? h("code", null, path) : null, path ? " " : null, h("span", { class: kind || null }, message)));
  if (all.length > MOST) items.push(h("li", { class: "hint" }, `and ${all.length - MOST} more`));
  const node = h("ul", { class: "stack findings", "aria-label": "Findings" }, items);
  Object.assign(node.style, { listStyle: "none", padding: "0", gap: "6px" });
  return node;
}

function lineButton(line, go) {
  const button = h("button", { type: "button", onclick: () => go(line) }, `line ${line}`);
  Object.assign(button.style, { minHeight: "24px", padding: "0 8px", fontSize: "12px" });
  return button;
}
