// One rule: what it says, what it decides and for whom, and the few things that one does to it in a hurry.

import { get, path, Problem } from "../api.js";
import { bars, completed, timeSeries } from "../charts.js";
import { ask } from "../confirm.js";
import { fill, h, say, set } from "../dom.js";
import { count, dayAndTime, percent, plural, rate, seconds, timeOfDay } from "../format.js";
import { changeRule, crumbs, getRule, inWords, modePill, ruleAddress, whyNot, wordPill } from "../ruleset.js";
import { write } from "../yaml.js";

const WINDOWS = [["60", "1 minute"], ["300", "5 minutes"], ["3600", "1 hour"]];
const LAST = { 60: "last minute", 300: "last 5 minutes", 3600: "last hour" };
const POLL_MS = 5000;
const LIVE_RULES = 50;
const REFUSALS = 12;
const MOST_KEYS = 10;
const KINDS = [["allowed", "Allowed", "allowed"], ["degraded", "Without the store", "degraded"],
  ["shadow_denied", "Shadow would deny", "shadow"], ["denied", "Denied", "denied"]];
const TOPS = [["Denied most", "top_denied", "denied", "Nobody was denied in this time."],
  ["Allowed most", "top_allowed", "allowed", "Nobody came in this time."],
  ["Nearest to the limit", "nearest", "degraded", "Nobody is near the limit."]];

export async function show({ app, live, name, query }) {
  const rule = await getRule(name);
  if (!rule) throw new Problem(404, `There is no rule ${name}.`);
  const why = whyNot(app, rule.version === null ? "file" : "database");
  const ends = new AbortController();
  const asked = query.get("window");
  let window = WINDOWS.some(([value]) => value === asked) ? asked : "60";

  const parts = { now: nowTiles(), chart: chartPart(), use: usePart(), tops: topsPart(name), refusals: refusalsPart() };
  const tabs = WINDOWS.map(([value, word]) => h("button", { type: "button", onclick: () => turn(value) }, word));
  mark();

  function mark() {
    WINDOWS.forEach(([value], n) => set(tabs[n], "aria-pressed", String(value === window)));
  }

  function turn(value) {
    window = value;
    app.keep({ window: value === "60" ? "" : value });
    mark();
    return look();
  }

  async function look() {
    const of = window;
    const [insight, decisions] = await Promise.all([
      quietly(get(path`/insight/rules/${name}?window=${of}`, ends.signal)),
      quietly(get(path`/decisions?rule=${name}&allowed=false&limit=${REFUSALS}`, ends.signal)),
    ]);
    if (of !== window || ends.signal.aborted) return;
    if (insight) {
      parts.chart.update(insight, LAST[of]);
      parts.use.update(insight.utilisation, LAST[of]);
      parts.tops.update(insight, LAST[of]);
    }
    if (decisions) parts.refusals.update(decisions);
  }

  /** Of the busiest rules it tells each second; of the others one knows from the last look. */
  function hear(stats) {
    const now = stats.rules.find((each) => each.rule === name);
    parts.now.update(now ?? (stats.rules.length < LIVE_RULES ? null : parts.chart.latest()));
  }

  if (live.stats) hear(live.stats);
  const stop = live.on("stats", hear);
  const timer = setInterval(() => document.hidden || look(), POLL_MS);
  await look();

  const [mode, kind] = modePill(rule);
  const node = h("section", null,
    crumbs(rule.name),
    h("div", { class: "row apart" },
      h("div", { class: "row" }, h("h1", null, rule.name), h("span", { class: `pill ${kind}` }, mode)),
      actions(app, rule, why)),
    rule.description ? h("p", null, rule.description) : null,
    parts.now.node,
    h("div", { class: "split" },
      h("div", null,
        h("section", { class: "card" },
          h("div", { class: "row apart" }, parts.chart.title, h("div", { class: "row", role: "group", "aria-label": "Time shown" }, tabs)),
          parts.chart.node),
        parts.refusals.node),
      h("div", null, wordsCard(rule), parts.use.node)),
    h("div", { class: "grid" }, parts.tops.nodes),
    overridesCard(rule));
  return {
    title: rule.name,
    node,
    close() {
      stop();
      clearInterval(timer);
      ends.abort();
    },
  };
}

/** What was asked for, or null: a rule that was saved this second is not known to every process yet. */
async function quietly(asking) {
  try {
    return await asking;
  } catch (problem) {
    if (problem instanceof Problem || problem.name === "AbortError") return null;
    throw problem;
  }
}

function actions(app, rule, why) {
  const off = { type: "button", disabled: why !== "", title: why || null };
  const edit = why ? h("button", off, "Edit") : h("a", { class: "button main", href: ruleAddress(rule.name, "edit") }, "Edit");
  return h("div", { class: "row" },
    h("a", { class: "button quiet", href: "/rules/history" }, "History"),
    h("button", { ...off, onclick: () => changeMode(app, rule) }, "Change the mode"),
    h("button", { ...off, class: "danger", onclick: () => drop(app, rule) }, "Delete"),
    edit);
}

const MODES = [["enforce", "Enforce: refuse what is over the limit"], ["shadow", "Shadow: count and report, refuse nobody"],
  ["off", "Off: as if it were not there"], ["block", "Block: refuse whoever matches"]];

async function changeMode(app, rule) {
  const done = await ask({
    title: `Mode of ${rule.name}`,
    fields: [
      { name: "mode", label: "Mode", type: "radio", value: rule.mode, options: MODES },
      { name: "percent", label: "For which share of the keys, in percent", type: "number", value: String(rule.enforce_percent),
        when: ({ mode }) => mode === "enforce",
        hint: "For the others it is a shadow. A key that is in stays in when the share grows." },
      { name: "comment", label: "Comment", placeholder: "Why the rule changes" },
    ],
    action: "Save",
    danger: ({ mode }) => mode === "block" && rule.mode !== "block",
    check: async ({ mode, percent: share, comment }) => {
      const number = Number(share);
      if (mode === "enforce" && (share === "" || !(number >= 0 && number <= 100))) return { percent: "Give a number from 0 to 100." };
      await changeRule(rule.name, (now) => withMode(now, mode, number), comment);
      return null;
    },
  });
  if (!done) return;
  app.tell(`${rule.name} is saved: ${done.mode}.`);
  app.show();
}

function withMode(rule, mode, share) {
  const { enforce_percent: _, ...others } = rule;
  if (mode !== "enforce") return { ...rule, mode };
  // A number with a point is text in rules, as it is when it comes from YAML.
  return share === 100 ? { ...others, mode } : { ...others, mode, enforce_percent: Number.isInteger(share) ? share : String(share) };
}

async function drop(app, rule) {
  const done = await ask({
    title: `Delete ${rule.name}`,
    text: "Requests are not held against this rule any more, and its overrides go with it. The history keeps it: roll back to have it again.",
    fields: [{ name: "comment", label: "Comment", placeholder: "Why it goes" }],
    action: "Delete the rule",
    danger: true,
    check: async ({ comment }) => { await changeRule(rule.name, () => null, comment || `without ${rule.name}`); },
  });
  if (!done) return;
  app.tell(`${rule.name} is deleted.`);
  app.go("/rules");
}

function tile(what, kind) {
  const much = h("span", { class: "much" }, "–");
  const aside = h("span", { class: "aside" });
  return { node: h("div", { class: `tile ${kind}` }, h("span", { class: "what" }, what), much, aside), much, aside };
}

function nowTiles() {
  const allowed = tile("Allowed", "allowed");
  const denied = tile("Denied", "denied");
  const share = tile("Refused share", "");
  return {
    node: h("div", { class: "stack" },
      h("div", { class: "tiles", role: "group", "aria-label": "At this moment" }, allowed.node, denied.node, share.node),
      h("p", { class: "hint" }, "On average of the last 5 to 10 seconds.")),
    update(now) {
      const { allowed: passed = 0, denied: refused = 0, shadow_denied: would = 0 } = now ?? {};
      say(allowed.much, rate(passed));
      say(denied.much, rate(refused));
      say(denied.aside, would ? `${rate(would)} would be, as a shadow` : "");
      const all = passed + refused + would;
      say(share.much, all ? percent((refused + would) / all) : "–");
      say(share.aside, all ? "" : "no requests in the last seconds");
    },
  };
}

function chartPart() {
  const made = timeSeries({ series: seriesOf([]), height: 200, unit: "/s", label: "Decisions of this rule a second, over time" });
  const title = h("h2", null, "Decisions a second");
  let last = null;
  return {
    node: made.node,
    title,
    /** The rates of the last slice that is over. */
    latest: () => last,
    update({ series, to }, range) {
      const over = completed(series, to);
      const slice = over.at(-1);
      const end = slice ? slice.at + slice.seconds : to;
      made.update({ series: seriesOf(over), to: end });
      say(title, `Decisions a second, ${range} to ${timeOfDay(end)}`);
      last = slice ? Object.fromEntries(KINDS.map(([field]) => [field, slice[field] / slice.seconds])) : null;
    },
  };
}

/** Rates of slices, each at its end. What never happened has no place in the legend, but for the two that one looks for. */
function seriesOf(slices) {
  return KINDS.filter(([field]) => field === "allowed" || field === "denied" || slices.some((slice) => slice[field] > 0))
    .map(([field, word, kind]) => ({ name: word, kind, points: slices.map((slice) => [slice.at + slice.seconds, slice[field] / slice.seconds]) }));
}

function usePart() {
  const word = h("span", { class: "pill" });
  const says = h("p", { class: "hint" });
  const made = bars({ items: [], unit: (share) => percent(share), label: "Keys, by how close they came to the limit", most: 1 });
  const title = h("h2", null, "How close keys come to the limit");
  return {
    node: h("section", { class: "card" }, h("div", { class: "row apart" }, title, word), says, made.node),
    update(use, range) {
      say(title, `How close keys come to the limit, ${range}`);
      say(word, use.word);
      word.hidden = use.keys === 0;
      word.className = `pill ${wordPill(use.word)}`;
      say(says, use.says);
      made.node.hidden = use.sampled === 0;
      let from = 0;
      const items = use.histogram.map(({ up_to: to, share }) => {
        const label = `${from}–${to} %`;
        from = to;
        return { label, value: share, kind: to > 90 ? "degraded" : "allowed" };
      });
      made.update([...items, { label: "refused", value: use.refused, kind: "denied" }]);
    },
  };
}

const keyAddress = (key, rule) => `/keys?${new URLSearchParams({ key, rule })}`;

function topsPart(rule) {
  const cards = TOPS.map((each) => topCard(rule, ...each));
  let last = "";
  return {
    nodes: cards.map(({ node }) => node),
    update(insight, range) {
      // The same again is left alone: somebody may be about to click on it.
      const now = JSON.stringify([range, cards.map(({ field }) => insight[field])]);
      if (now === last) return;
      last = now;
      for (const card of cards) card.update(insight[card.field].slice(0, MOST_KEYS), range);
    },
  };
}

function topCard(rule, title, field, kind, nobody) {
  const isShare = field === "nearest";
  const none = h("p", { class: "hint" }, nobody);
  const made = bars({ items: [], unit: isShare ? (value) => `${value} %` : count, label: title, most: isShare ? 100 : null });
  const heading = h("h2", null, title);
  return {
    field,
    node: h("section", { class: "card" }, heading, none, made.node),
    update(items, range) {
      say(heading, `${title}, ${range}`);
      none.hidden = items.length > 0;
      made.node.hidden = items.length === 0;
      made.update(items.map((each) => ({
        label: each.key, value: isShare ? each.percent : each.count, kind, href: keyAddress(each.key, rule),
        title: each.at_most_too_high ? `${each.key}: at most ${count(each.at_most_too_high)} too high` : each.key,
      })));
    },
  };
}

function refusalsPart() {
  const list = h("ul", { class: "decisions" });
  const none = h("p", { class: "hint" });
  let last = "";
  return {
    node: h("section", { class: "card" }, h("h2", null, "Refused lately"), none, list),
    update({ decisions, kept }) {
      none.hidden = decisions.length > 0;
      list.hidden = decisions.length === 0;
      say(none, `No refusal of this rule is kept. Of refusals, these are: ${kept.refused}.`);
      const now = decisions.map((each) => each.id + each.at).join();
      if (now === last) return;
      last = now;
      fill(list, decisions.map(refusal));
    },
  };
}

function refusal(one) {
  const wait = one.retry_after === null ? "no wait would help" : `again in ${seconds(one.retry_after)}`;
  return h("li", null,
    h("time", { datetime: new Date(one.at * 1000).toISOString(), title: dayAndTime(one.at) }, timeOfDay(one.at)),
    h("span", null, h("span", { class: `pill ${one.source === "store" ? "denied" : "degraded"}` }, one.source === "store" ? "denied" : one.source)),
    h("span", { class: "why" }, one.key ? h("a", { href: keyAddress(one.key, one.rule) }, one.key) : "all together", ` ${one.reason}`),
    styled(h("span", { class: "how" }, wait), { whiteSpace: "nowrap" }));
}

function styled(element, style) {
  Object.assign(element.style, style);
  return element;
}

function wordsCard(rule) {
  const facts = inWords(rule.document).flatMap(([what, said]) => [h("dt", null, what),
    h("dd", null, Array.isArray(said) ? (said.length === 1 ? said[0] : h("ul", null, said.map((each) => h("li", null, each)))) : said)]);
  return h("section", { class: "card" }, h("h2", null, "What it says"), h("dl", { class: "facts" }, facts),
    h("details", null, h("summary", null, "As it is written"), h("pre", { tabindex: "0" }, write(rule.document))));
}

function overridesCard(rule) {
  const overrides = rule.document.overrides ?? [];
  if (!overrides.length) return null;
  const rows = overrides.map((each) => {
    const key = Object.entries(each.key).map(([name, value]) => `${name}=${value}`).join(", ");
    const address = `/keys?${new URLSearchParams([...Object.entries(each.key).map(([name, value]) => [name, String(value)]), ["rule", rule.name]])}`;
    return h("tr", null, h("th", { scope: "row" }, h("a", { href: address }, key)), h("td", { class: "mono" }, [each.limits].flat().join(", ")),
      h("td", null, each.starts ? dayAndTime(String(each.starts)) : "–"), h("td", null, each.ends ? dayAndTime(String(each.ends)) : "never"), h("td", null, each.description ?? ""));
  });
  return h("section", { class: "card" }, h("h2", null, plural(overrides.length, "override")),
    h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": "Overrides" },
      h("table", null, h("caption", null, "Keys with limits of their own"),
        h("thead", null, h("tr", null, ["Key", "Limits", "From", "Until", "Why"].map((word) => h("th", { scope: "col" }, word)))), h("tbody", null, rows))));
}
