// The decisions as they are made, each with its reason; and the answer to "why was this refused?".

import { get, path, Problem } from "../api.js";
import { fill, freshId, h, say } from "../dom.js";
import { dayAndTime, percent, plural, seconds, timeOfDay } from "../format.js";

const MOST_ROWS = 300;
const FIRST = 100;
const FLUSH_MS = 250;
const LOOK_MS = 2000;
const OUTCOMES = [["", "All"], ["denied", "Denied"], ["allowed", "Allowed"], ["shadow", "Shadow would refuse"], ["degraded", "Without the store"]];
const SURFACES = [["", "All"], ["check", "check"], ["slots", "slots"], ["auth", "auth"], ["envoy", "envoy"]];
const FILTERS = ["rule", "key", "outcome", "surface"];

export async function show({ app, live, query }) {
  const end = new AbortController();
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  // As the API calls it, so that an address can be made of either.
  if (query.has("allowed")) filters.outcome = query.get("allowed") === "false" ? "denied" : "allowed";

  const list = h("ol", { class: "decisions", "aria-label": "Decisions, the newest first" });
  const empty = h("div", { class: "card" });
  const counted = h("p", { class: "hint" });
  const pause = h("button", { type: "button", onclick: () => turn(!isPaused) }, "Pause");
  const rules = h("datalist", { id: freshId("rules") });
  const fields = filterFields(filters, rules, changed);
  const clear = h("button", { type: "button", class: "quiet", onclick: clearAll }, "Clear filters");
  const sought = requestSearch(query.get("id") ?? "", end.signal, keep);

  let isPaused = false, kept = null, leftOut = 0, missed = 0, dropped = 0, frame = 0, choice = 0, turns = 0;
  let waiting = [];
  const known = new Set();

  const isFiltered = () => FILTERS.some((name) => filters[name]);

  function keep() {
    app.keep({ ...filters, id: sought.id });
    clear.hidden = !isFiltered();
  }

  function fits(one) {
    if (filters.rule && one.rule !== filters.rule) return false;
    if (filters.surface && one.surface !== filters.surface) return false;
    return !filters.outcome || outcomesOf(one).includes(filters.outcome);
  }

  /** Take decisions in, from wherever they are told: each is shown once. */
  function take(decisions) {
    for (const one of decisions) {
      if (known.has(which(one)) || !fits(one)) continue;
      known.add(which(one));
      waiting.push(one);
    }
    if (waiting.length > MOST_ROWS) {
      waiting.sort(byAge);
      for (const one of waiting.splice(0, waiting.length - MOST_ROWS)) {
        known.delete(which(one));
        dropped += 1;
      }
    }
    if (!frame) frame = setTimeout(flush, FLUSH_MS);
  }

  function flush() {
    clearTimeout(frame);
    frame = 0;
    if (!isPaused && waiting.length) {
      // What is told late goes to its place: rows are sought from the top, where most belong.
      for (const one of waiting.sort(byAge)) place(list, rowOf(one, sought.open));
      waiting = [];
      while (list.children.length > MOST_ROWS) {
        known.delete(list.lastChild.dataset.which);
        list.lastChild.remove();
      }
    }
    tell();
  }

  function tell() {
    const number = list.children.length;
    list.hidden = number === 0;
    empty.hidden = number > 0;
    say(pause, isPaused ? (waiting.length ? `Go on (${waiting.length} new)` : "Go on") : "Pause");
    const parts = [number === MOST_ROWS ? `The last ${number} decisions` : plural(number, "decision")];
    if (leftOut) parts.push(`${plural(leftOut, "other")} left out, as more than 50 came in a second`);
    if (dropped) parts.push(`${plural(dropped, "older one")} dropped while paused`);
    say(counted, number ? `${parts.join("; ")}. ${keptSentence(kept)}` : "");
  }

  function turn(on) {
    isPaused = on;
    pause.className = on ? "main" : "";
    flush();
  }

  /** Ask the service for decisions that fit: it knows hidden keys, and what the stream left out. */
  async function look() {
    const asking = choice;
    const asked = new URLSearchParams({ limit: FIRST });
    if (filters.rule) asked.set("rule", filters.rule);
    if (filters.key) asked.set("key", filters.key);
    if (filters.outcome === "denied" || filters.outcome === "allowed") asked.set("allowed", String(filters.outcome === "allowed"));
    const told = await get(`/decisions?${asked}`, end.signal);
    kept = told.kept;
    // Other filters were chosen meanwhile.
    if (asking !== choice) return;
    missed = 0;
    take(told.decisions);
  }

  function changed(next) {
    Object.assign(filters, next);
    choice += 1;
    keep();
    known.clear();
    waiting = [];
    leftOut = dropped = 0;
    fill(list);
    look().then(() => { showEmpty(); flush(); }, failed);
  }

  function clearAll() {
    for (const name of FILTERS) fields.set(name, "");
    changed(Object.fromEntries(FILTERS.map((name) => [name, ""])));
    pause.focus();
  }

  function failed(problem) {
    if (problem.name === "AbortError") return;
    if (!(problem instanceof Problem)) throw problem;
    if (problem.status !== 0) app.tell(problem.detail, "failed");
  }

  function showEmpty() {
    fill(empty, emptyState(filters, kept, dataPlane, clearAll));
  }

  clear.hidden = !isFiltered();
  // Before anything that has to be ended: when this fails, nobody closes the page.
  const [{ data_plane: dataPlane }] = await Promise.all([get("/stats", end.signal), look()]);
  await sought.find();
  const timer = setInterval(() => {
    if (document.visibilityState !== "visible" || isPaused) return;
    turns += 1;
    // A hidden key cannot be compared here, so the service is asked; for other filters, when some were left out.
    if (filters.key || (isFiltered() && missed && turns % 3 === 0)) look().catch(() => {});
  }, LOOK_MS);
  const ends = [
    live.on("decision", (one) => {
      leftOut += one.left_out;
      missed += one.left_out;
      if (!filters.key || one.key === filters.key) take([one]);
    }),
    live.on("stats", (now) => suggest(rules, now)),
    // While the stream was away, others may have been made.
    live.on("state", (state) => state === "open" && look().catch(() => {})),
  ];
  if (live.stats) suggest(rules, live.stats);
  showEmpty();
  flush();
  return {
    title: "Live",
    node: h("div", null,
      h("div", { class: "row apart" }, h("h1", null, "Live"), sought.form),
      sought.answer,
      h("div", { class: "toolbar" }, fields.nodes, clear),
      h("div", { class: "row nowrap" }, counted, h("span", { class: "push" }, pause)),
      rules, list, empty),
    close() {
      end.abort();
      clearInterval(timer);
      clearTimeout(frame);
      for (const each of ends) each();
    },
  };
}

const which = (one) => `${one.instance} ${one.at}`;
const byAge = (a, b) => a.at - b.at;

function outcomesOf(one) {
  const words = [one.allowed ? "allowed" : "denied"];
  if (one.source !== "store") words.push("degraded");
  if (one.shadow) words.push("shadow");
  return words;
}

/** Put a row where its time belongs, the newest at the top. */
function place(list, row) {
  let next = list.firstChild;
  while (next && Number(next.dataset.at) > Number(row.dataset.at)) next = next.nextSibling;
  list.insertBefore(row, next);
}

function filterFields(filters, rules, changed) {
  const made = {
    rule: field("Rule", h("input", { type: "search", list: rules.id, value: filters.rule, placeholder: "any" })),
    key: field("Key, exactly", h("input", { type: "search", value: filters.key, placeholder: "user=42", class: "mono" })),
    outcome: field("Outcome", select(OUTCOMES, filters.outcome)),
    surface: field("Asked by", select(SURFACES, filters.surface)),
  };
  for (const [name, { input }] of Object.entries(made)) {
    input.addEventListener("change", () => changed({ [name]: input.value.trim() }));
    // The cross of a search field is no change to browsers, but to people it is.
    input.addEventListener("search", () => input.value.trim() !== filters[name] && changed({ [name]: input.value.trim() }));
  }
  return { nodes: Object.values(made).map(({ node }) => node), set: (name, value) => { made[name].input.value = value; } };
}

function field(label, input) {
  input.id = freshId("filter");
  if (input.tagName === "INPUT") Object.assign(input, { autocomplete: "off", spellcheck: false });
  return { input, node: h("div", { class: "field" }, h("label", { for: input.id }, label), input) };
}

function select(options, value) {
  const made = h("select", null, options.map(([each, label]) => h("option", { value: each }, label)));
  made.value = options.some(([each]) => each === value) ? value : "";
  return made;
}

/** Names of rules to choose from: those that decide something now. */
function suggest(datalist, { rules }) {
  const names = rules.map(({ rule }) => rule);
  if (names.some((name, n) => datalist.children[n]?.value !== name) || names.length !== datalist.children.length) {
    fill(datalist, names.map((value) => h("option", { value })));
  }
}

/** The search for one request, by the id that its answer has. */
function requestSearch(first, signal, keep) {
  const id = freshId("id");
  const input = h("input", { id, type: "search", value: first, placeholder: "x-request-id", autocomplete: "off", spellcheck: "false", class: "mono",
    onsearch: () => input.value === "" && search() });
  const answer = h("section", { class: "card", role: "status", hidden: true });
  const found = {
    id: first,
    answer,
    form: h("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); search(); } },
      h("label", { for: id, class: "hint" }, "Why was this refused?"),
      h("div", { class: "row nowrap" }, input, h("button", null, "Find"))),
    find,
    async open(id) {
      input.value = id;
      await search();
      answer.scrollIntoView({ block: "nearest" });
    },
  };

  function search() {
    found.id = input.value.trim();
    keep();
    return find();
  }

  async function find() {
    const asked = found.id;
    answer.hidden = !asked;
    if (!asked) return;
    let told;
    try {
      told = await get(`/decisions?${new URLSearchParams({ id: asked })}`, signal);
    } catch (problem) {
      if (!(problem instanceof Problem)) return;
      fill(answer, h("p", { class: "problem" }, problem.detail));
      return;
    }
    if (asked !== found.id) return;
    fill(answer, h("div", { class: "row apart" }, h("h2", null, "Request ", h("span", { class: "mono" }, asked)),
      h("button", { type: "button", class: "quiet", onclick: () => { input.value = ""; search(); input.focus(); } }, "Close")),
    told.decisions.length
      ? h("ol", { class: "decisions" }, told.decisions.map((one) => rowOf(one)))
      : [h("p", null, "Nothing is known of this request. It was decided too long ago, or it was not kept, or no limen saw it."),
        h("p", { class: "hint" }, keptSentence(told.kept), " For a list of checks, - and the place in the list follow the id: ",
          h("span", { class: "mono" }, `${asked}-1`), ".")]);
  }

  return found;
}

/** One decision; with `open`, its id opens all that is known of it, and else all of it is told. */
function rowOf(one, open = null) {
  const words = outcomesOf(one);
  const shadow = one.shadow && one.allowed;
  const kind = !one.allowed ? "denied" : words.includes("degraded") ? "degraded" : shadow ? "shadow" : "allowed";
  const row = h("li", { class: open ? null : "whole" },
    h("time", { datetime: new Date(one.at * 1000).toISOString(), title: dayAndTime(one.at) }, timeOfDay(one.at)),
    h("span", null, h("span", { class: `pill ${kind}` }, kind)),
    h("div", { class: "why" }, explained(one)),
    h("span", { class: "how", title: `Asked by ${one.surface}` }, one.surface),
    h("div", { class: "also" }, open
      ? [brief(one), h("button", { type: "button", class: "link", title: "Tell more of this request", onclick: () => open(one.id) }, one.id)]
      : details(one)));
  row.dataset.at = one.at;
  row.dataset.which = which(one);
  return row;
}

/** Say in a sentence why it was decided so, with links to the rule and the key. */
function explained(one) {
  const rule = one.rule === null ? null : h("a", { href: path`/rules/${one.rule}` }, one.rule);
  const parts = [one.allowed ? "Allowed" : "Refused"];
  if (rule) parts.push(" by ", rule);
  parts.push(`: ${one.reason}`);
  if (one.key !== null) parts.push(" for ", one.rule === null ? h("span", { class: "mono" }, one.key)
    : h("a", { class: "mono", href: `/keys?${new URLSearchParams({ key: one.key, rule: one.rule })}` }, one.key));
  if (one.rule === null && one.limit !== null) parts.push("; the limit came with the request");
  if (one.allowed && one.remaining !== null) parts.push(`, ${one.remaining} left`);
  parts.push(".");
  if (!one.allowed) parts.push(` ${again(one)}`);
  if (one.shadow) parts.push(one.allowed ? " A shadow would have refused it." : " A shadow would have refused it, too.");
  if (one.source !== "store" && one.fault) parts.push(` The store: ${one.fault}.`);
  return parts;
}

function again({ retry_after: wait, limit, cost, source }) {
  if (wait > 0 && limit?.includes(" at once")) return `It passes when another one has ended, or after ${seconds(wait)}.`;
  if (wait > 0) return `It would pass after ${seconds(wait)}.`;
  if (source === "closed") return "It passes when the store is back.";
  if (limit !== null && cost > 1) return `It never passes: it costs ${cost}, which is more than the limit.`;
  return limit === null ? "Waiting does not help." : "It does not pass under this limit.";
}

const DECIDED_BY = { store: "the store", local: "its process alone", open: "nobody, as the store was away", closed: "nobody, as the store was away" };

function brief(one) {
  return one.cost === 1 ? null : `cost ${one.cost} · `;
}

function details(one) {
  const parts = [dayAndTime(one.at), `cost ${one.cost}`];
  if (one.limit !== null) parts.push(`limit ${one.limit}`);
  if (one.remaining !== null) parts.push(`${one.remaining} left`);
  parts.push(`counted by ${DECIDED_BY[one.source] ?? one.source}`);
  if (one.version) parts.push(`rules version ${one.version}`);
  parts.push(`process ${one.instance}`, `id ${one.id}`);
  return parts.join(" · ");
}

function keptSentence(kept) {
  if (!kept) return "";
  if (kept.refused.startsWith("none")) return "No decisions are kept, because insight is turned off.";
  return `Kept are the refused (${kept.refused}) and ${percent(kept.allowed_share)} of the allowed.`;
}

function emptyState(filters, kept, dataPlane, clearAll) {
  if (FILTERS.some((name) => filters[name])) {
    return h("div", { class: "empty" }, h("h2", null, "Nothing that fits"),
      h("p", null, `No decision that is kept fits these filters. New ones appear here. ${keptSentence(kept)}`),
      h("button", { onclick: clearAll }, "Clear filters"));
  }
  const token = dataPlane.token_required ? "-H \"Authorization: Bearer $TOKEN\" " : "";
  const line = ["for n in 1 2 3 4 5 6 7; do", `  curl ${dataPlane.url}/v1/check ${token}\\`,
    "    -d '{\"attributes\": {\"path\": \"/login\", \"ip\": \"203.0.113.7\"}}'", "done"].join("\n");
  const copy = navigator.clipboard && h("button", { onclick: async () => {
    await navigator.clipboard.writeText(line);
    say(copy, "Copied");
  } }, "Copy");
  return h("div", { class: "empty" }, h("h2", null, "No decisions yet"),
    h("p", null, `Decisions appear here as they are made. ${keptSentence(kept)}`),
    h("p", null, "To make some, ask a few times for the same address. Under the starter rules, the sixth is refused:"),
    h("pre", { tabindex: "0" }, line), copy);
}
