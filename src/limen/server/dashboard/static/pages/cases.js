// Overrides, exemptions and blocks: those of the key first, and a way to end each.

import { get, path, Problem, remove } from "../api.js";
import { confirmed } from "../confirm.js";
import { fill, freshId, h, say } from "../dom.js";
import { dayAndTime, plural } from "../format.js";
import { located, told } from "./facts.js";

const MOST_ROWS = 100;
const IN_FILE = "The rules are in a file: change them there.";
const KINDS = [
  { list: "overrides", one: "override", who: (item) => item.key, more: (item) => ["in ", h("a", { href: path`/rules/${item.rule}` }, item.rule), `: ${[item.limits].flat().join(", ")}`],
    at: (item) => `${path`/rules/${item.rule}/overrides`}?${new URLSearchParams(Object.entries(item.key).map(([name, value]) => [name, String(value)]))}`,
    verb: "Remove", ask: (item) => `${told(item.key)} goes back to the usual limits of ${item.rule}.` },
  { list: "exemptions", one: "exemption", who: (item) => item.match, more: (item) => [`${item.name}: no limit by ${item.rules ? item.rules.join(", ") : "any rule"}`],
    at: (item) => path`/exemptions/${item.name}`, verb: "Remove", ask: (item) => `Rules apply again to what ${item.name} exempts.` },
  { list: "blocks", one: "block", who: (item) => item.match, more: (item) => [h("a", { href: path`/rules/${item.name}` }, item.name)],
    at: (item) => path`/blocks/${item.name}`, verb: "Lift", ask: (item) => `${item.name} refuses nobody any more.` },
];

export function specialCases(page, sought) {
  const { app, facts } = page;
  const id = freshId("search");
  const search = h("input", { id, type: "search", value: sought, autocomplete: "off", spellcheck: "false", oninput: () => {
    history.replaceState(null, "", addressWith(search.value));
    list();
  } });
  const field = h("div", { class: "field" }, h("label", { for: id }, "Search"), search);
  const told = h("p", { class: "hint", role: "status" });
  const box = h("div", { class: "table-box" });
  const node = h("section", { class: "card" }, h("h2", null, "Overrides, exemptions and blocks"), h("div", { class: "toolbar" }, field), told, box);
  let found = [];

  function addressWith(text) {
    const query = new URLSearchParams(location.search);
    if (text) query.set(".search", text);
    else query.delete(".search");
    return located(query);
  }

  async function look() {
    try {
      const answers = await Promise.all(KINDS.map((kind) => get(`/${kind.list}`, page.ends.signal)));
      page.locked = answers[0].version === null ? IN_FILE : null;
      found = KINDS.flatMap((kind, n) => answers[n][kind.list].map((item) => caseOf(kind, item)));
      found.sort((a, b) => b.isOurs - a.isOurs);
      list();
    } catch (problem) {
      // Without the database nobody knows them, and where the key stands can be told all the same.
      if (!(problem instanceof Problem)) throw problem;
      field.hidden = box.hidden = true;
      say(told, problem.detail);
    }
  }

  function caseOf(kind, item) {
    const who = wordsOf(kind.who(item));
    return { kind, item, who, isOurs: facts !== null && concerns(kind.who(item), facts),
      text: `${kind.one} ${who} ${item.rule ?? item.name} ${item.description}`.toLowerCase() };
  }

  function list() {
    const words = search.value.trim().toLowerCase();
    const fitting = found.filter((each) => each.text.includes(words));
    field.hidden = !found.length;
    box.hidden = !fitting.length;
    const more = fitting.length - MOST_ROWS;
    if (!found.length) say(told, "There are none. Look at a key to give it other limits, or to block it.");
    else if (!fitting.length) say(told, "None of them fits the search.");
    else say(told, more > 0 ? `${plural(more, "more")}: search to see them.` : "");
    const columns = ["Kind", "For", "What", "Ends", "Why", ...(app.may("editor") ? ["Change"] : [])];
    fill(box, h("table", { class: "wide" }, h("caption", null, `${plural(fitting.length, "special case")}${facts ? ", those of this key first" : ""}`),
      h("thead", null, h("tr", null, columns.map((word) => h("th", { scope: "col" }, word)))),
      h("tbody", null, fitting.slice(0, MOST_ROWS).map(row))));
  }

  function row({ kind, item, who, isOurs }) {
    const gone = h("button", { class: "quiet", disabled: Boolean(page.locked), title: page.locked,
      "aria-label": `${kind.verb} the ${kind.one} for ${who}`, onclick: () => take(gone, kind, item, who) }, kind.verb);
    return h("tr", { class: isOurs ? "meant" : null },
      h("td", { class: "unbroken" }, kind.one, isOurs ? [" ", h("span", { class: "pill" }, "this key")] : null),
      h("td", { class: "mono" }, who),
      h("td", null, kind.more(item)),
      h("td", null, endOf(item)),
      h("td", null, item.description || "–"),
      app.may("editor") ? h("td", { class: "unbroken" }, gone) : null);
  }

  async function take(button, kind, item, who) {
    const sure = await confirmed({ title: `${kind.verb} the ${kind.one} for ${who}?`, text: `${kind.ask(item)} It becomes a version of the rules, and can be rolled back.`,
      action: kind.verb, danger: true });
    if (!sure) return;
    const name = button.getAttribute("aria-label");
    const done = await app.act(button, () => remove(kind.at(item)));
    button.setAttribute("aria-label", name);
    if (!done) return;
    app.tell(kind.one === "block" ? `The block for ${who} is lifted.` : `The ${kind.one} for ${who} is removed.`);
    await page.again(true);
    if (document.activeElement === document.body) (field.hidden ? document.getElementById("main") : search)?.focus();
  }

  return { node, look };
}

/** A match in a few words: {user: 42, path: ["/a", "/b"]}. */
function wordsOf(match) {
  const word = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : String(value));
  return Object.entries(match).map(([name, value]) => `${name}=${word(value)}`).join(", ");
}

/** Whether what an override, exemption or block names is plainly this request; patterns are left to the service. */
function concerns(match, facts) {
  const same = ([name, value]) => [value].flat().some((each) => String(each).replaceAll("\\*", "*") === facts[name]);
  return Object.entries(match).length > 0 && Object.entries(match).every(same);
}

function endOf(item) {
  if (item.state === "ended") return h("span", { class: "pill off" }, "ended");
  const ends = item.ends ? dayAndTime(item.ends) : "never";
  return item.state === "scheduled" ? [h("span", { class: "pill off" }, "scheduled"), ` from ${dayAndTime(item.starts)}, ends ${ends}`] : ends;
}
