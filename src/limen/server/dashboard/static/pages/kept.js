// What a key was told lately, of the decisions that the service keeps.

import { get, path } from "../api.js";
import { fill, h, say } from "../dom.js";
import { ago, count, dayAndTime, percent } from "../format.js";

const MOST_DECISIONS = 50;
const MOST_KEYS = 5;

export function decisionsOf(page) {
  const { asked, facts } = page;
  const body = h("tbody");
  const table = h("div", { class: "table-box" }, h("table", { class: "wide" }, h("caption", null, "Recent decisions, the newest first"),
    h("thead", null, h("tr", null, ["When", "Decision", "Rule", "Why", "Left", "Request"].map((word) =>
      h("th", { scope: "col", class: word === "Left" ? "number" : null }, word)))), body));
  const kept = h("p", { class: "hint" });
  const node = h("section", { class: "card" }, h("h2", null, "Recent decisions"), kept, table);
  node.hidden = !facts && asked.key === null;
  let last = "";

  async function look() {
    if (node.hidden) return;
    const keys = keysOf();
    const answers = await Promise.all(keys.map((key) => get(`/decisions?limit=${MOST_DECISIONS}&key=${encodeURIComponent(key)}`, page.ends.signal)));
    const found = answers.flatMap((answer) => answer.decisions).sort((a, b) => b.at - a.at).slice(0, MOST_DECISIONS);
    const which = found.map((one) => `${one.instance} ${one.at}`).join();
    if (which !== last || !found.length) fill(body, found.map(decisionRow));
    else found.forEach((one, n) => say(body.rows[n].cells[0], ago(one.at)));
    last = which;
    table.hidden = !found.length;
    const rule = answers[0]?.kept;
    const share = rule ? `Kept are: of refused ones ${rule.refused}; of allowed ones ${percent(rule.allowed_share)}.` : "";
    say(kept, found.length ? share : `No decision about this key is kept of late. ${share}`);
  }

  function keysOf() {
    const counted = (page.standing?.parts ?? []).map((part) => part.key).filter(Boolean);
    const given = facts ? [] : [asked.key];
    const single = Object.entries(facts ?? {}).map(([name, value]) => `${name}=${value.replaceAll("%", "%25").replaceAll("|", "%7C")}`);
    return [...new Set([...given, ...(counted.length ? counted : single)])].slice(0, MOST_KEYS);
  }

  return { node, look };
}

function decisionRow(one) {
  const kind = one.allowed ? (one.shadow ? "shadow" : "allowed") : "denied";
  return h("tr", null,
    h("td", { title: dayAndTime(one.at) }, ago(one.at)),
    h("td", null, h("span", { class: `pill ${kind}` }, one.allowed ? (one.shadow ? "allowed, shadow refuses" : "allowed") : "denied"),
      one.source === "store" ? null : [" ", h("span", { class: "pill degraded", title: one.fault }, one.source)]),
    h("td", null, one.rule ? h("a", { href: path`/rules/${one.rule}` }, one.rule) : "–"),
    h("td", null, one.reason),
    h("td", { class: "number" }, one.remaining === null ? "–" : count(one.remaining)),
    h("td", { class: "mono" }, one.id));
}
