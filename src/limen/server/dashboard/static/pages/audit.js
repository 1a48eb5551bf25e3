// The audit: who did what, the newest first, and whether it is still as it was written.

import { get, path, post, Problem } from "../api.js";
import { fill, freshId, h, say } from "../dom.js";
import { ago, dayAndTime, plural, timeOfDay } from "../format.js";
import { changesNode } from "../ruleset.js";

const PAGE = 50;
const MOST_AT_ONCE = 1000;
const ACTIONS = {
  save: "saved rules",
  activate: "let rules hold",
  rollback: "rolled back",
  "token-create": "created a token",
  "token-revoke": "revoked a token",
  "kill-switch": "turned the kill switch",
  reset: "reset a key",
};

export async function show({ app, query }) {
  const ends = new AbortController();
  // As many as were loaded before the page was loaded anew.
  const first = Math.min(MOST_AT_ONCE, Math.max(PAGE, Number(query.get("shown")) || PAGE));
  const rows = (await get(`/audit?limit=${first}`)).rows;
  let isAll = rows.length < first;
  let open = Number(query.get("row")) || null;

  const [byAction, byName] = [freshId("action"), freshId("name")];
  const action = h("select", { id: byAction, onchange: turn }, h("option", { value: "" }, "All"),
    Object.entries(ACTIONS).map(([each, words]) => h("option", { value: each }, words)));
  action.value = query.get("action") in ACTIONS ? query.get("action") : "";
  const name = h("input", { id: byName, type: "search", value: query.get("name") ?? "", autocomplete: "off", spellcheck: "false", oninput: turn });
  const body = h("tbody");
  const acts = h("table", null, h("caption", null, "Acts, the newest first"),
    h("thead", null, h("tr", null, ["When", "Who", "Did", "What", "Comment", "Details"].map((word) => h("th", { scope: "col" }, word)))), body);
  // It scrolls in its box rather than break words, where the window is narrow.
  acts.style.minWidth = "760px";
  const table = h("div", { class: "table-box" }, acts);
  const told = h("p", { class: "hint", role: "status" });
  const empty = h("section", { class: "empty" }, h("h2", null, "Nothing was done yet"),
    h("p", null, "Every change of rules, tokens, keys and the kill switch stands here from now on, with who did it and why."));
  const older = h("button", { onclick: () => app.act(older, more) }, "Older");
  const verified = h("p", { class: "hint", role: "status" });
  const verify = h("button", { onclick: check }, "Verify");

  function keep() {
    app.keep({ action: action.value, name: name.value.trim(), row: open, shown: rows.length > PAGE ? rows.length : null });
  }

  function turn() {
    keep();
    list();
  }

  function list() {
    const sought = name.value.trim().toLowerCase();
    const fitting = rows.filter((row) => (!action.value || row.action === action.value) && row.actor.toLowerCase().includes(sought));
    fill(body, fitting.map((row) => rowOf(row)));
    table.hidden = !fitting.length;
    empty.hidden = rows.length > 0;
    older.hidden = isAll;
    const of = fitting.length === rows.length ? plural(rows.length, "act") : `${fitting.length} of ${plural(rows.length, "loaded act")}`;
    say(told, rows.length ? `${of}${isAll ? ", all that there are." : "."}${isAll || fitting.length === rows.length ? "" : " Older ones may fit too."}` : "");
  }

  function rowOf(row) {
    const id = freshId("details");
    const details = h("tr", { id, class: "details", hidden: open !== row.id });
    const button = h("button", { class: "quiet", "aria-expanded": String(open === row.id), "aria-controls": id,
      "aria-label": `Details of act ${row.id}`, onclick: toggle }, open === row.id ? "Close" : "Open");

    function toggle() {
      const isOpen = details.hidden;
      details.hidden = !isOpen;
      open = isOpen ? row.id : open === row.id ? null : open;
      button.setAttribute("aria-expanded", String(isOpen));
      say(button, isOpen ? "Close" : "Open");
      if (isOpen && !details.hasChildNodes()) fill(details, h("td", { colspan: 6 }, h("div", { class: "stack" }, detailsOf(row, ends.signal))));
      keep();
    }

    if (open === row.id) fill(details, h("td", { colspan: 6 }, h("div", { class: "stack" }, detailsOf(row, ends.signal))));
    return [h("tr", null,
      h("td", { title: dayAndTime(row.at) }, ago(row.at)),
      h("td", null, row.actor),
      h("td", null, ACTIONS[row.action] ?? row.action),
      h("td", null, row.version === null ? row.subject : `version ${row.version}`),
      h("td", null, row.comment || "–"),
      h("td", null, button)), details];
  }

  async function more() {
    const found = (await get(`/audit?limit=${PAGE}&before=${rows.at(-1).id}`, ends.signal)).rows;
    rows.push(...found);
    isAll = found.length < PAGE;
    turn();
  }

  async function check() {
    verified.className = "hint";
    say(verified, "Reading all of it …");
    const found = await app.act(verify, () => post("/audit/verify"));
    if (!found) return say(verified, "");
    verified.className = found.holds ? "hint" : "problem";
    say(verified, found.holds
      ? `Verified at ${timeOfDay(Date.now() / 1000)}: rules, tokens and audit are as limen wrote them.`
      : `Something was changed past limen: ${found.problem}`);
  }

  list();
  return {
    title: "Audit",
    node: h("div", { class: "page" }, h("h1", null, "Audit"),
      h("div", { class: "toolbar" },
        h("div", { class: "field" }, h("label", { for: byAction }, "What was done"), action),
        h("div", { class: "field" }, h("label", { for: byName }, "Who"), name),
        verify),
      verified, table, empty, told, older),
    close: () => ends.abort(),
  };
}

function detailsOf(row, signal) {
  const facts = [["When", dayAndTime(row.at)], ["Who", row.actor], ["What", row.subject || `version ${row.version}`],
    ["Comment", row.comment || "–"], ["Row", `${row.id}`], ["Hash", row.hash]];
  if (row.version !== null && row.action !== "save") facts.splice(3, 0, ["Before", row.before ? `version ${row.before} held` : "no rules held"]);
  const list = h("dl", { class: "facts" }, facts.map(([word, value]) => [h("dt", null, word), h("dd", { class: word === "Hash" ? "mono" : null }, value)]));
  if (row.version === null) return list;
  const inside = h("div", { class: "stack" }, h("p", { class: "loading" }, "Loading …"));
  load();
  return [list, inside];

  async function load() {
    // A save differs from the version it was made from; what comes to hold, from what held before.
    const against = row.action === "save" ? "" : `?against=${row.before}`;
    try {
      const diff = await get(`${path`/rules/versions/${row.version}/diff`}${against}`, signal);
      fill(inside, diffOf(diff));
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (!(problem instanceof Problem)) throw problem;
      fill(inside, h("p", { class: "problem", role: "alert" }, problem.detail),
        h("button", { onclick: () => { fill(inside, h("p", { class: "loading" }, "Loading …")); load(); } }, "Try again"));
    }
  }
}

function diffOf({ before, after, changes }) {
  const heading = h("p", null, `Version ${after} against ${before ? `version ${before}` : "no rules"}: ${changes.length ? plural(changes.length, "change") : "nothing is different"}`);
  return [heading, changes.length ? h("div", { role: "region", "aria-label": `Changes of version ${after}` }, changesNode(changes)) : null,
    h("a", { href: "/rules/history" }, "History of the rules")];
}
