// All rules: found by a few letters, sorted, each with what it decides at this moment.

import { get } from "../api.js";
import { sparkline } from "../charts.js";
import { fill, freshId, h, say, set } from "../dom.js";
import { count, plural, rate } from "../format.js";
import { download, exported, limitsText, modePill, ruleAddress, whyNot, wordPill } from "../ruleset.js";
import { table } from "../table.js";

const POLL_MS = 5000;
const TREND = 60;
const LIVE_RULES = 50;
const MODES = ["block", "enforce", "shadow", "off"];
const WORDS = ["refuses many", "tight", "fitting", "loose", "never reached", "unknown"];

export async function show({ app, live, query }) {
  const held = await get("/rules");
  const why = whyNot(app, held.source);
  const rows = held.rules.map(row);
  const byName = new Map(rows.map((each) => [each.name, each]));
  const state = { search: query.get("search") ?? "", sort: query.get("sort") ?? "", import: query.get("import") ?? "" };
  const ends = new AbortController();
  let listed = rows;

  const total = h("span", { class: "hint", role: "status" });
  const list = table({
    caption: "Rules, with what they decide each second", columns: columns(), rowHeight: 50, minWidth: "1010px", sorted: state.sort,
    onsort: (sort) => { state.sort = sort; app.keep(state); arrange(true); },
  });
  const nothing = h("div", { class: "empty", hidden: true });
  const changed = h("p", { class: "note", role: "status", hidden: true });
  const panel = h("div", { hidden: true });
  const searchId = freshId("search");
  const search = h("input", { id: searchId, type: "search", value: state.search, placeholder: "Name, description, key, limit, mode",
    spellcheck: "false", autocomplete: "off",
    oninput: () => { state.search = search.value; app.keep(state); arrange(true); } });
  const actions = h("div", { class: "row push" },
    h("a", { class: "button quiet", href: "/rules/history" }, "History"),
    h("button", { type: "button", class: "quiet", onclick: save, disabled: rows.length === 0 }, "Export YAML"),
    h("button", { type: "button", onclick: openImport, disabled: why !== "", title: why || null }, "Import"),
    why ? h("button", { type: "button", disabled: true, title: why }, "New rule") : h("a", { class: "button main", href: "/rules/new" }, "New rule"));

  const node = h("section", null,
    h("div", { class: "row apart" },
      h("div", { class: "row" }, h("h1", null, "Rules"), total), actions),
    held.source === "file" ? h("p", { class: "note" }, why) : null,
    held.latest > held.version ? draftNote(held) : null,
    changed, panel,
    rows.length ? h("div", { class: "toolbar" }, wide(h("div", { class: "field" }, h("label", { for: searchId }, "Search"), search))) : null,
    rows.length ? h("p", { class: "hint" }, "Allowed and Denied are averages of the last 5 to 10 seconds, or of the last minute for rules beyond the 50 busiest. Use is of the last minute; the trend, too, or since this dashboard was opened.") : null,
    list.node, nothing);

  /** Sort and filter again; what is sorted by numbers is sorted when new ones come, not each second. */
  function arrange(toTop) {
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? rows.filter((each) => words.every((word) => each.text.includes(word))) : rows;
    listed = sortedBy(found, state.sort);
    list.show(listed, { toTop });
    list.node.hidden = listed.length === 0;
    nothing.hidden = listed.length > 0;
    if (!listed.length) fill(nothing, rows.length ? unfound() : empty(why));
    say(total, words.length ? `${count(found.length)} of ${plural(rows.length, "rule")}` : told(rows.length, held));
  }

  function unfound() {
    return [h("h2", null, "No rule is like this"), h("p", null, "Names, descriptions, keys, limits and modes were searched."),
      h("button", { type: "button", onclick: () => { search.value = state.search = ""; app.keep(state); arrange(true); search.focus(); } }, "Show all rules")];
  }

  function save() {
    download(held.version ? `rules-version-${held.version}.yaml` : "rules.yaml", exported(held.document, held.version));
  }

  async function openImport() {
    const { importPanel } = await import("./import.js");
    if (ends.signal.aborted) return;
    state.import = "1";
    app.keep(state);
    panel.hidden = false;
    const made = importPanel({ app, close: () => { panel.hidden = true; fill(panel); state.import = ""; app.keep(state); } });
    fill(panel, made);
    made.querySelector("textarea").focus();
  }

  function hear(stats) {
    const told = new Map(stats.rules.map((each) => [each.rule, each]));
    const isAll = stats.rules.length < LIVE_RULES;
    for (const name of told.keys()) if (byName.has(name)) byName.get(name).live ??= fresh();
    for (const each of rows) {
      if (!each.live) continue;
      const now = told.get(each.name);
      if (now) Object.assign(each.live, ratesOf(now, 1));
      // Of the busiest it tells; who is not among them is quiet, or known from the last look at all.
      else if (isAll) Object.assign(each.live, { allowed: 0, denied: 0, shadow: 0 });
      push(each.live);
    }
    list.refresh();
  }

  async function look() {
    if (document.hidden) return;
    try {
      const seen = await get("/insight?window=60&limit=1000", ends.signal);
      const lasted = Math.max(1, seen.to - seen.from);
      const isBusy = (live.stats?.rules.length ?? LIVE_RULES) >= LIVE_RULES;
      const known = new Set((live.stats?.rules ?? []).map((each) => each.rule));
      for (const each of rows) each.used = null;
      for (const each of seen.rules) {
        const one = byName.get(each.rule);
        if (!one) continue;
        one.live ??= fresh();
        one.used = each.utilisation;
        if (isBusy && !known.has(each.rule)) Object.assign(one.live, ratesOf(each, lasted));
      }
      if (held.source === "database") notice(await get("/rules/versions?limit=1", ends.signal));
      if (/allowed|denied|used/.test(state.sort)) arrange(false);
      else list.refresh();
    } catch (problem) {
      // The banner says that the service is away; here the last numbers stay.
      if (problem.status === undefined && problem.name !== "AbortError") throw problem;
    }
  }

  function notice({ versions: [newest] }) {
    if (!newest || newest.version === held.latest) return;
    held.latest = newest.version;
    changed.hidden = false;
    fill(changed, `${newest.author} saved version ${newest.version}. `,
      h("button", { type: "button", onclick: () => app.show() }, "Show the rules as they are now"));
  }

  const past = live.history.slice(-TREND);
  for (const stats of past) hear(stats);
  arrange(true);
  const stop = live.on("stats", hear);
  const timer = setInterval(look, POLL_MS);
  look();
  if (state.import && !why) openImport();

  return {
    title: "Rules",
    node,
    close() {
      stop();
      clearInterval(timer);
      ends.abort();
      list.close();
    },
  };
}

function row(rule, order) {
  const limits = limitsText(rule);
  const [mode, kind] = modePill(rule);
  const text = [rule.name, rule.description, rule.key.join(" "), limits, mode, JSON.stringify(rule.match)].join("\n").toLowerCase();
  return {
    name: rule.name, description: rule.description, key: rule.key.join(", ") || "all together", limits, mode, kind,
    rank: MODES.indexOf(rule.mode), order, text,
    // What it decides, when it has decided something lately; and how close keys come to the limit.
    live: null, used: null,
  };
}

const fresh = () => ({ allowed: 0, denied: 0, shadow: 0, all: [], over: [] });
const ratesOf = (told, seconds) => ({ allowed: told.allowed / seconds, denied: told.denied / seconds, shadow: told.shadow_denied / seconds });

function push(live) {
  live.all.push(live.allowed + live.denied + live.shadow);
  live.over.push(live.denied);
  if (live.all.length > TREND) {
    live.all.shift();
    live.over.shift();
  }
}

function columns() {
  return [
    { name: "name", title: "Rule", width: "27%", sort: true, head: true, make: nameCell },
    { name: "mode", title: "Mode", width: "11%", sort: true, make: () => pillCell((each) => [each.mode, each.kind, ""]) },
    { name: "limits", title: "Limits", width: "19%", make: () => clipCell("limits") },
    { name: "key", title: "Key", width: "10%", make: () => clipCell("key") },
    { name: "allowed", title: "Allowed", width: "8%", class: "number", sort: true, text: (each) => (each.live ? rate(rounded(each.live.allowed)) : "–") },
    { name: "denied", title: "Denied", width: "8%", class: "number", sort: true, make: deniedCell },
    { name: "trend", title: "Trend", width: "112px", make: trendCell },
    { name: "used", title: "Use", width: "12%", sort: true, make: () => pillCell(useOf) },
  ];
}

const useOf = ({ used }) => (used ? [used.word, wordPill(used.word), used.says] : ["", "", ""]);
const rounded = (number) => (number < 10 ? Math.round(10 * number) / 10 : Math.round(number));

function nameCell() {
  const link = h("a", { class: "clip" });
  const below = h("span", { class: "clip hint" });
  link.style.maxWidth = below.style.maxWidth = "100%";
  return {
    node: h("div", null, link, below),
    show(each) {
      say(link, each.name);
      if (link.title === each.name && below.textContent === each.description) return;
      set(link, "href", ruleAddress(each.name));
      set(link, "title", each.name);
      say(below, each.description);
      set(below, "title", each.description || null);
    },
  };
}

function clipCell(field) {
  const node = h("span", null);
  return { node, show(each) { say(node, each[field]); if (node.title !== each[field]) node.title = each[field]; } };
}

function pillCell(read) {
  const node = h("span", { class: "pill" });
  return {
    node,
    show(each) {
      const [word, kind, title] = read(each);
      say(node, word);
      node.hidden = word === "";
      const name = `pill ${kind}`;
      if (node.className !== name) node.className = name;
      if (node.title !== title) node.title = title;
    },
  };
}

/** Denied, and for a shadow what it would have denied. */
function deniedCell() {
  const node = h("span", null);
  return {
    node,
    show({ live }) {
      const would = live && live.shadow > 0 && live.denied === 0;
      say(node, live ? rate(rounded(would ? live.shadow : live.denied)) : "–");
      const name = would ? "soft" : live && live.denied > 0 ? "problem" : "";
      if (node.className !== name) node.className = name;
      const title = would ? "A shadow: it would have denied so many" : "";
      if (node.title !== title) node.title = title;
    },
  };
}

function trendCell() {
  const made = sparkline([], { width: 92, height: 22, label: "" });
  const node = h("div", null, made.node);
  return {
    node,
    show({ live, name }) {
      const quiet = !live || live.all.every((value) => value === 0);
      made.node.toggleAttribute("hidden", quiet);
      if (quiet) return;
      const [now, most] = [live.all.at(-1), Math.max(...live.all)].map((value) => rate(rounded(value)));
      made.update(live.all, live.over, `Requests under ${name}: ${now} now, ${most} at most in the last minute`);
    },
  };
}

/** Sort rows by a column, "-denied" from the most to the least; without one, as they stand in the set. */
function sortedBy(rows, sort) {
  const name = sort.replace(/^-/, "");
  const way = sort.startsWith("-") ? -1 : 1;
  const value = {
    name: null,
    mode: (each) => each.rank,
    allowed: (each) => each.live?.allowed ?? -1,
    denied: (each) => (each.live ? each.live.denied + each.live.shadow / 1e6 : -1),
    used: (each) => (each.used ? WORDS.indexOf(each.used.word) : WORDS.length),
  }[name];
  if (value === undefined) return rows;
  if (value === null) return rows.toSorted((a, b) => way * (a.name < b.name ? -1 : 1));
  return rows.toSorted((a, b) => way * (value(a) - value(b)) || a.order - b.order);
}

function told(number, held) {
  const from = held.version ? `version ${held.version}` : held.source === "file" ? "from a file" : "";
  return [plural(number, "rule"), from].filter(Boolean).join(", ");
}

function empty(why) {
  return [h("h2", null, "There are no rules yet"),
    h("p", null, "Without rules every request is allowed. A rule says which requests it is for, what is counted apart, and how much is allowed:"),
    h("pre", null, "name: login-per-address\nmatch: {path: /login}\nkey: [ip]\nlimits: 5/minute\n"),
    why ? h("p", null, why) : h("a", { class: "button main", href: "/rules/new" }, "Write the first rule")];
}

function draftNote({ latest, version }) {
  return h("p", { class: "note" }, `Version ${latest} is newer than the rules that hold. It may be a draft: `,
    h("a", { href: `/rules/history?to=${latest}&from=${version}` }, "see what it changes"), ".");
}

function wide(field) {
  field.style.flex = "1 1 320px";
  field.style.maxWidth = "520px";
  return field;
}
