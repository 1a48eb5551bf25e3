// Where a request stands under each rule that applies to it, and what editors can do about it.

import { get, path, post, Problem } from "../api.js";
import { ask } from "../confirm.js";
import { fill, h, say } from "../dom.js";
import { count, moment, plural, seconds } from "../format.js";
import { parsed, told } from "./facts.js";

const MOST_ROWS = 100;
const MOST_TIERED = 20;

export function standingOf(page) {
  const { app, asked, facts } = page;
  const note = h("p", { class: "hint note" }, asked.note ?? "");
  note.hidden = !asked.note;
  if (!facts) {
    const empty = asked.key === null
      ? h("section", { class: "empty" }, h("h2", null, "Whose key?"),
        h("p", null, "Enter what is known of a request, such as user and 42, and you see every rule that applies to it, what is left, and what it was told lately."))
      : h("section", { class: "card" }, h("h2", { class: "mono" }, asked.key), note);
    return { node: empty, parts: [], look: async () => {} };
  }

  const verdict = h("p", { class: "row verdict" });
  const body = h("tbody");
  const table = h("div", { class: "table-box" }, h("table", { class: "wide" },
    h("caption", null, "Rules that apply"),
    h("thead", null, h("tr", null, ["Rule", "Limit", "Left", "Full again", "Counted under", "Mode", ...(app.may("editor") ? ["Change"] : [])]
      .map((word) => h("th", { scope: "col", class: word === "Left" ? "number" : null }, word)))), body));
  const nothing = h("p", { class: "hint" }, "No rule applies to such a request: nothing is counted, and nobody is refused. Perhaps an attribute is missing, such as path.");
  const others = h("p", { class: "hint" });
  const reset = h("button", { onclick: () => resetKey(page, reset, null) }, "Reset all counters");
  const block = h("button", { class: "danger", onclick: () => blockKey(page) }, "Block");
  const node = h("section", { class: "card" }, h("h2", { class: "mono" }, told(facts)), note, verdict, table, nothing, others, whyOthers(page),
    app.may("editor") ? h("div", { class: "row" }, reset, block) : null);
  const own = { node, parts: [], look };
  let rows = new Map();
  const tiers = tiersOf(page);

  async function look() {
    const said = await post("/keys/inspect", { attributes: facts }, page.ends.signal);
    own.parts = said.parts;
    const unknown = await tiers.unknown(said.parts);
    fill(verdict, ...verdictOf(said, [...new Set([...unknown.values()].map(({ by }) => by))]));
    // One row for a rule whose limits are not known, with all that they may be.
    const shown = said.parts.filter((part, n) => !unknown.has(part.rule) || part.rule !== said.parts[n - 1]?.rule);
    const names = shown.map(nameOf);
    // Only when other rules apply is the table made anew: a button under somebody's finger must stay.
    if (names.join("\n") !== [...rows.keys()].join("\n")) {
      const without = (rule) => said.parts.filter((part) => part.rule === rule).map((part) => part.limit ?? "unlimited");
      const tiersOfRule = (rule) => unknown.has(rule) ? { ...unknown.get(rule), without: without(rule) } : null;
      rows = new Map(shown.map((part, n) => [nameOf(part), rowOf(page, part, part.rule !== shown[n - 1]?.rule, tiersOfRule(part.rule))]));
      fill(body, [...rows.values()].map((row) => row.node));
    }
    for (const part of shown) rows.get(nameOf(part)).update(part);
    table.hidden = !said.parts.length;
    reset.hidden = !said.parts.some((part) => part.limit);
    const isMissed = asked.rule && !asked.isGone && !said.parts.some((part) => part.rule === asked.rule);
    const more = Object.entries(asked.more ?? {}).map(([name, wanted]) => `${name} (${wanted})`);
    nothing.hidden = said.parts.length > 0 || isMissed;
    const words = [
      said.exempt?.length ? `Exempt by ${said.exempt.join(", ")}.` : "",
      said.not_applicable?.length ? `Not asked here, because they count what runs at once: ${said.not_applicable.join(", ")}.` : "",
      isMissed ? `The rule ${asked.rule} does not apply to these attributes${more.length ? `: it asks for ${more.join(" and ")} too. Fill it in above to see where the key stands there` : ""}.` : "",
    ].filter(Boolean);
    say(others, words.join(" "));
    block.disabled = Boolean(page.locked);
    block.title = page.locked ?? "";
  }

  return own;
}

const nameOf = (part) => [part.name, part.limit, part.key, part.mode, part.tier, part.variant].join(" ");

/** The rules that limit by an attribute which this request does not have, such as a plan: which of their limits holds is
not known, and the one for requests without it would mislead. */
function tiersOf({ facts, ends: page }) {
  const known = new Map();
  // A key with limits of its own has them whatever its tier is.
  const holds = ({ starts, ends }) => !(starts && moment(starts) > Date.now()) && !(ends && moment(ends) <= Date.now());
  const isOwn = (override) => holds(override) && Object.entries(override.key ?? {}).every(([name, value]) => String(value) === facts[name]);

  async function read(rule) {
    try {
      const { tiers = null, overrides = [] } = (await get(path`/rules/${rule}`, page.signal)).document ?? {};
      return overrides.some(isOwn) ? null : tiers;
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      return null;
    }
  }

  return {
    async unknown(parts) {
      const names = [...new Set(parts.filter((part) => !part.reason && !part.tier).map((part) => part.rule))];
      for (const name of names.filter((each) => !known.has(each)).slice(0, MOST_TIERED)) known.set(name, await read(name));
      return new Map(names.map((name) => [name, known.get(name)]).filter(([, tiers]) => tiers && !(tiers.by in facts)));
    },
  };
}

/** The limits of each tier, as a list. */
function tierList({ limits = {}, default: other, without }) {
  const line = (tier, given) => h("li", null, `${tier}: ${[given].flat().join(", ")}`);
  return h("ul", { class: "tiers" }, Object.entries(limits).map(([tier, given]) => line(tier, given)),
    other === undefined ? null : line("any other", other), line("without it", without));
}

function verdictOf(said, missing) {
  const pill = h("span", { class: `pill ${said.allowed ? "allowed" : "denied"}` }, said.allowed ? "allowed" : "denied");
  const degraded = said.degraded ? h("span", { class: "pill degraded", title: "The store did not answer." }, `decided by ${said.source}`) : null;
  const unsure = missing.length
    ? h("span", { class: "note" }, `The ${missing.join(" and the ")} of this key is not known, and limits depend on it. This is the answer to a request `
      + `without ${missing.join(" and ")}. Add the attribute ${missing.join(" and ")} above to see where the key stands.`)
    : null;
  const sentence = missing.length ? sentenceOf(said).replace("A request", `A request without ${missing.join(" and ")}`) : sentenceOf(said);
  return [pill, h("span", null, sentence), degraded, unsure];
}

function sentenceOf({ allowed, rule, remaining, retry_after: wait, parts }) {
  if (allowed) {
    return rule === null || remaining === null ? "A request would pass now: no limit is in the way."
      : `A request would pass now. Nearest its limit is ${rule}, with ${count(remaining)} left.`;
  }
  const reason = parts.find((part) => part.rule === rule)?.reason;
  if (reason === "blocked") return `A request would be refused now: ${rule} blocks it.`;
  if (reason === "missing") return `A request would be refused now: an attribute is missing that ${rule} counts by.`;
  return `A request would be refused now by ${rule}. ${wait === null ? "It does not pass by waiting." : `It would pass in ${seconds(wait)}.`}`;
}

/** How much a limit holds at most: "100/minute" 100, "10/s burst 20" 20, "2 at once" 2; null when it does not say. */
function capacityOf(limit) {
  const burst = /\bburst (\d+)/.exec(limit ?? "");
  const quota = /^(\d[\d_,]*)/.exec(limit ?? "");
  const found = burst ?? quota;
  return found ? Number(found[1].replace(/[_,]/g, "")) : null;
}

function rowOf(page, part, isFirst, unknown) {
  const { app } = page;
  const capacity = unknown ? null : capacityOf(part.limit);
  const left = h("span", { class: "left" });
  const bar = capacity ? h("meter", { min: 0, max: capacity, low: capacity / 4, high: capacity / 2, optimum: capacity, "aria-hidden": "true" }) : null;
  const resets = h("span");
  const mode = h("span", { class: "pill" });
  const about = [unknown && `${unknown.by} unknown`, part.tier && `tier ${part.tier}`, part.variant && `variant ${part.variant}`].filter(Boolean).join(", ");
  const reset = h("button", { class: "quiet", onclick: () => resetKey(page, reset, part.rule) }, "Reset");
  const over = h("button", { class: "quiet", onclick: () => overrideKey(page, part) }, "Override");
  const node = h("tr", { class: part.rule === page.asked.rule ? "meant" : null },
    h("th", { scope: "row" }, h("a", { href: path`/rules/${part.rule ?? ""}` }, part.rule), about ? h("div", { class: "hint" }, about) : null),
    h("td", { class: "mono unbroken" }, unknown ? tierList(unknown) : part.limit ?? (part.reason ? "refuses" : "unlimited")),
    h("td", { class: "number" }, left, bar),
    h("td", null, resets),
    h("td", { class: "mono" }, part.key ?? "–"),
    h("td", null, mode),
    app.may("editor") ? h("td", { class: "unbroken" }, isFirst ? [part.limit ? reset : null, part.key && parsed(part.key)[0] ? over : null] : null) : null);
  return {
    node,
    update(now) {
      say(left, unknown || now.remaining === null ? "–" : capacity ? `${count(now.remaining)} of ${count(capacity)}` : count(now.remaining));
      if (bar) bar.value = now.remaining ?? 0;
      say(resets, unknown || now.limit === null ? "–" : now.reset_after > 0 ? `in ${seconds(now.reset_after)}` : "now");
      const [kind, word] = now.reason ? ["denied", now.reason] : now.mode === "shadow" ? ["shadow", now.allowed ? "shadow" : "shadow: would refuse"]
        : now.allowed ? ["allowed", now.mode] : ["denied", `${now.mode}: refuses`];
      mode.className = `pill ${kind}`;
      say(mode, word);
      over.disabled = Boolean(page.locked);
      over.title = page.locked ?? "";
    },
  };
}

/** The rules that do not apply, and why: asked for only when somebody wants to know. */
function whyOthers(page) {
  const inside = h("div", null, h("p", { class: "loading" }, "Loading …"));
  const node = h("details", { ontoggle: open }, h("summary", null, "Why other rules do not apply"), inside);

  async function open() {
    if (!node.open) return;
    try {
      const { rules, rules_left_out: leftOut, unused } = await post("/explain", { attributes: page.facts }, page.ends.signal);
      const apart = rules.filter((rule) => !rule.applies);
      fill(inside,
        unused.length ? h("p", { class: "hint" }, `No rule looks at ${unused.join(", ")}.`) : null,
        apart.length ? h("ul", null, apart.slice(0, MOST_ROWS).map((rule) =>
          h("li", null, h("a", { href: path`/rules/${rule.rule}` }, rule.rule), `: ${obstacleOf(rule)}`))) : h("p", null, "There are none: every rule applies."),
        apart.length + leftOut > MOST_ROWS ? h("p", { class: "hint" }, `And ${plural(Math.max(0, apart.length - MOST_ROWS) + leftOut, "more rule")}.`) : null);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      fill(inside, h("p", { class: "problem", role: "alert" }, problem.detail ?? "That did not work."));
    }
  }

  return node;
}

/** What stands against a rule: the first condition that does not hold, or what the service says. */
function obstacleOf({ conditions, because }) {
  const failed = conditions.find((each) => !each.holds);
  if (!failed || because === "mode is off") return (because ?? "it does not match").replace(" : absent", ", which is absent");
  return `asks that ${failed.attribute} ${failed.asked}, ${failed.got === null ? "and it is absent" : `and got ${failed.got}`}`;
}

// What editors do

async function resetKey(page, button, rule) {
  const whose = told(page.facts);
  const given = await ask({
    title: rule ? `Reset ${rule} for this key?` : "Reset all counters of this key?",
    text: `What was counted for ${whose} ${rule ? "under this rule" : "under every rule that applies"} is forgotten, and it begins anew. This cannot be undone.`,
    fields: [{ name: "comment", label: "Comment", hint: "Why, for the audit. It may stay empty." }],
    action: "Reset",
    danger: true,
  });
  if (!given) return;
  const asked = { attributes: page.facts, comment: given.comment, ...(rule ? { rule } : {}) };
  const done = await page.app.act(button, () => post("/keys/reset", asked));
  if (!done) return;
  page.app.tell(done.rules.length ? `Reset under ${done.rules.join(", ")}.` : "No rule counts such a request: there was nothing to reset.");
  await page.again();
}

async function overrideKey(page, part) {
  const [key] = parsed(part.key);
  const given = await ask({
    title: `Other limits for ${told(key)}`,
    text: `Under ${part.rule} it has ${part.limit ?? "no limit"} now. An override takes the place of the one that this key has there, if any. It becomes a version of the rules, and can be rolled back.`,
    fields: [
      { name: "limits", label: "Limits", required: true, placeholder: "5000/hour", hint: "Such as 100/minute; several with commas between; or unlimited." },
      { name: "ends", label: "Ends", type: "ends", value: "86400" },
      { name: "comment", label: "Why", hint: "Kept with the override and in the history. It may stay empty." },
    ],
    action: "Save override",
    check: async ({ limits, ends, comment }) => {
      const each = limits.split(",").map((limit) => limit.trim()).filter(Boolean);
      await post(path`/rules/${part.rule}/overrides`, { key, limits: each.length === 1 ? each[0] : each, ...reasons(ends, comment) });
      return null;
    },
  });
  if (!given) return;
  page.app.tell(`Override saved under ${part.rule}.`);
  await page.again(true);
}

async function blockKey(page) {
  const entries = Object.entries(page.facts);
  const counted = new Set(page.standing.parts.flatMap((part) => Object.keys((part.key && parsed(part.key)[0]) ?? {})));
  const usual = entries.filter(([name]) => counted.has(name));
  const first = (usual.length ? usual : entries)[0][0];
  const fields = entries.map(([name, value]) => ({ name: `attribute ${name}`, label: `${name} is ${value}`, type: "checkbox", value: name === first }));
  const chosen = (values) => Object.fromEntries(entries.filter(([name]) => values[`attribute ${name}`]));
  const given = await ask({
    title: "Block requests",
    text: (values) => `Every request is refused where ${told(chosen(values)) || "…"}, whatever other rules say. It becomes a version of the rules, and can be lifted below.`,
    fields: [...fields,
      { name: "ends", label: "Ends", type: "ends", value: "3600" },
      { name: "comment", label: "Why", hint: "Kept with the block and in the history. It may stay empty." }],
    action: "Block",
    danger: true,
    check: async (values) => {
      const attributes = chosen(values);
      if (!Object.keys(attributes).length) return { [fields[0].name]: "Choose at least one, or nobody is blocked." };
      await post("/blocks", { attributes, ...reasons(values.ends, values.comment) });
      return null;
    },
  });
  if (!given) return;
  page.app.tell(`Blocked: ${told(chosen(given))}.`);
  await page.again(true);
}

function reasons(ends, comment) {
  // A description may be shorter than a comment.
  return { ...(ends ? { ends } : {}), ...(comment ? { comment, description: comment.slice(0, 1000) } : {}) };
}
