// What the pages about rules share: addresses, small edits of a whole set, words for rules and for changes.

import { get, path, put } from "./api.js";
import { h } from "./dom.js";
import { count, dayAndTime, plural } from "./format.js";
import { write, writeRules } from "./yaml.js";

const PAGES = ["new", "history"];
const MAX_CHANGES = 200;
const MAX_DEPTH = 20;

/** The address of a rule's page, or of one below it: "edit". A rule may be called like another page of ours. */
export function ruleAddress(name, below = "") {
  const written = PAGES.includes(name) ? `%${name.charCodeAt(0).toString(16)}${name.slice(1)}` : encodeURIComponent(name);
  return `/rules/${written}${below ? `/${below}` : ""}`;
}

/** Return one rule as the API tells it; null when there is none. */
export async function getRule(name) {
  // At that address the API tells the versions.
  if (name === "versions") return inSet(await get("/rules"), name);
  return get(path`/rules/${name}`);
}

function inSet(held, name) {
  const summary = held.rules.find((rule) => rule.name === name);
  return summary ? { ...summary, version: held.version, document: ruleOf(held.document, name) } : null;
}

export const rulesOf = (document) => document.rules ?? [];

/** Return a rule of a document as it is written, or undefined. */
export const ruleOf = (document, name) => rulesOf(document).find((rule) => String(rule.name) === name);

/** Return a document in which a rule is another one, or gone (null), or new, when there was none. */
export function withRule(document, name, rule) {
  const rules = rulesOf(document);
  const place = rules.findIndex((each) => String(each.name) === name);
  const fresh = rule === null ? [] : [rule];
  return { ...document, rules: place < 0 ? [...rules, ...fresh] : rules.toSpliced(place, 1, ...fresh) };
}

/** Change one rule of those that hold, and save all. `change` takes the rule as it is now; null deletes it. */
export async function changeRule(name, change, comment) {
  const held = await get("/rules");
  const rule = ruleOf(held.document, name);
  const fresh = rule === undefined ? null : change(rule);
  const saved = await put("/rules", { document: withRule(held.document, name, fresh), base: held.latest, comment });
  if (fresh) await untilInForce(saved.version);
  return saved;
}

/** Wait until the processes that are known run a version: a second, mostly. Those that do not within three are not waited for. */
export async function untilInForce(version) {
  for (let tries = 0; tries < 15; tries += 1) {
    const { instances } = await get("/instances");
    if (instances.every((each) => each.version === String(version))) return;
    await new Promise((resolve) => { setTimeout(resolve, 200); });
  }
}

/** Why nobody may change the rules here; empty when one may. */
export function whyNot(app, source) {
  if (source === "file") return "The rules are in a file. Change the file, and they follow.";
  return app.may("editor") ? "" : "Your role is viewer: it may look. Changes need the role editor.";
}

/** Where one is: the list of rules, perhaps a rule, and this page. */
export function crumbs(here, rule = null) {
  return h("nav", { "aria-label": "Where you are" }, h("ol", { class: "crumbs" },
    h("li", null, h("a", { href: "/rules" }, "Rules")),
    rule === null ? null : h("li", null, h("a", { href: ruleAddress(rule) }, rule)),
    h("li", { "aria-current": "page" }, here)));
}

/** Let the browser keep a text as a file. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/yaml" }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Write a whole set for a file. */
export function exported(document, version) {
  return `${version ? `# Version ${version}\n` : ""}${writeRules(document)}`;
}

const MODE_KINDS = { enforce: "allowed", shadow: "shadow", off: "off", block: "denied" };
const WORD_KINDS = { "refuses many": "denied", tight: "degraded", fitting: "allowed" };

/** What a rule does, in a word or two and with the class of a pill: ["enforce 25 %", "allowed"]. */
export function modePill({ mode, enforce_percent: percent, state }) {
  if (state === "ended" || state === "scheduled") return [`${mode}, ${state}`, "off"];
  const isPart = mode === "enforce" && percent < 100;
  return [isPart ? `enforce ${percent} %` : mode, isPart ? "degraded" : MODE_KINDS[mode]];
}

export const wordPill = (word) => WORD_KINDS[word] ?? "off";

/** A list of limits in a line; what it means when there are none. */
export function limitsText({ limits, mode }) {
  if (limits.length) return limits.join(" · ");
  return mode === "block" ? "refuses all that match" : "–";
}

/** What one condition of `match` asks for: "is /login or /signin". */
export function conditionText(condition) {
  if (condition === null || typeof condition !== "object" || Array.isArray(condition)) return `is ${either(condition)}`;
  const words = [];
  if (condition.present === true) words.push("is there");
  if (condition.present === false) words.push("is absent");
  if (condition.is !== undefined) words.push(`is ${either(condition.is)}`);
  if (condition.not !== undefined) words.push(`is not ${either(condition.not)}`);
  return words.join(", and ");
}

const either = (values) => (Array.isArray(values) ? values.join(" or ") : String(values));
const listed = (values) => (Array.isArray(values) ? values.map(String) : values === undefined || values === null ? [] : [String(values)]);

/** A rule in words, as [what, sentence or list] pairs; of what it does not say, only what matters. */
export function inWords(rule) {
  const found = [];
  const add = (what, said) => said !== undefined && said !== null && said.length && found.push([what, said]);
  const match = Object.entries(rule.match ?? {});
  add("Requests", match.length ? match.map(([name, condition]) => `${name} ${conditionText(condition)}`) : "all of them");
  const key = listed(rule.key);
  add("Counted", key.length ? `apart for each ${key.join(" and ")}` : "all together");
  if (key.length) add(`Without ${key.join(" or ")}`, rule.missing === "deny" ? "the request is refused" : "the rule does not apply");
  add("Limits", listed(rule.limits));
  if (rule.concurrency) add("At once", `${rule.concurrency.slots}; a holder that died keeps its slot for ${rule.concurrency.lease}`);
  if (rule.tiers) {
    const tiers = Object.entries(rule.tiers.limits ?? {}).map(([tier, limits]) => `${tier}: ${listed(limits).join(", ")}`);
    if (rule.tiers.default !== undefined) tiers.push(`any other: ${listed(rule.tiers.default).join(", ")}`);
    add(`By ${rule.tiers.by}`, tiers);
  }
  add("Algorithm", rule.algorithm);
  if (rule.cost !== undefined) add("Cost", typeof rule.cost === "number" ? `${rule.cost} for each request` : `what the attribute ${rule.cost} says`);
  add("Mode", modeSentence(rule));
  for (const variant of rule.variants ?? []) {
    const own = [...listed(variant.limits), ...(variant.algorithm ? [variant.algorithm] : []), ...(variant.tiers ? ["other tiers"] : [])];
    add(`Variant ${variant.name ?? ""}`.trim(), `${variant.percent} % of the keys: ${own.join(", ")}`);
  }
  add("Store away", { local: "each process counts its share", open: "lets pass", closed: "refuses" }[rule.on_error]);
  add("From", rule.starts && dayAndTime(String(rule.starts)));
  add("Until", rule.ends && dayAndTime(String(rule.ends)));
  return found;
}

function modeSentence({ mode = "enforce", enforce_percent: percent = 100 }) {
  if (mode === "shadow") return "shadow: counts and reports, and refuses nobody";
  if (mode === "off") return "off: as if it were not there; its counters wait";
  if (mode === "block") return "block: refuses whoever matches";
  return Number(percent) < 100 ? `enforce for ${percent} % of the keys; a shadow for the others` : "enforce: refuses what is over the limit";
}

/** What is different between two documents, as the API tells it for two versions. */
export function changesBetween(before, after) {
  const found = [];
  for (const key of keysOf(before, after)) {
    const isNamed = (key === "rules" || key === "exemptions") && Array.isArray(before[key] ?? []) && Array.isArray(after[key] ?? []);
    if (isNamed) items(key, before[key] ?? [], after[key] ?? [], found);
    else entry(key, key, before, after, found, 0);
  }
  return found;
}

function items(at, old, fresh, found) {
  const olds = byName(old);
  const news = byName(fresh);
  const stayed = Object.keys(olds).filter((name) => name in news);
  const now = Object.keys(news).filter((name) => name in olds);
  if (stayed.some((name, n) => name !== now[n])) found.push({ kind: "changed", path: at, before: { order: stayed }, after: { order: now } });
  for (const name of keysOf(olds, news)) entry(`${at}.${name}`, name, olds, news, found, 0);
}

function byName(list) {
  const found = Object.create(null);
  list.forEach((item, n) => { found[String(item?.name ?? `[${n}]`)] = item; });
  return found;
}

const keysOf = (old, fresh) => [...new Set([...Object.keys(fresh), ...Object.keys(old)])];
const isMapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function entry(at, key, old, fresh, found, depth) {
  if (!Object.hasOwn(old, key)) found.push({ kind: "added", path: at, before: null, after: fresh[key] });
  else if (!Object.hasOwn(fresh, key)) found.push({ kind: "removed", path: at, before: old[key], after: null });
  else if (isMapping(old[key]) && isMapping(fresh[key]) && depth < MAX_DEPTH) {
    for (const inner of keysOf(old[key], fresh[key])) entry(`${at}.${inner}`, inner, old[key], fresh[key], found, depth + 1);
  } else if (!isSame(old[key], fresh[key])) found.push({ kind: "changed", path: at, before: old[key], after: fresh[key] });
}

/** Whether two values say the same; the order of fields says nothing. */
export function isSame(one, other) {
  if (one === other) return true;
  if (one === null || other === null || typeof one !== "object" || typeof other !== "object") return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const keys = Object.keys(one);
  return keys.length === Object.keys(other).length && keys.every((key) => Object.hasOwn(other, key) && isSame(one[key], other[key]));
}

/** How many of each: "1 added, 2 changed". */
export function changesText(changes) {
  if (!changes.length) return "nothing is different";
  const kinds = ["added", "changed", "removed"].map((kind) => [changes.filter((change) => change.kind === kind).length, kind]);
  return kinds.filter(([number]) => number).map(([number, kind]) => `${count(number)} ${kind}`).join(", ");
}

/** Changes line by line, what goes and what comes; of very many, the first, until more are asked for. */
export function changesNode(changes, most = MAX_CHANGES) {
  if (!changes.length) return h("p", { class: "hint" }, "Nothing is different.");
  const node = h("div", { class: "diff", role: "group", "aria-label": `Differences: ${changesText(changes)}`, tabindex: "0" });
  Object.assign(node.style, { maxHeight: "60vh", overflow: "auto" });
  for (const change of changes.slice(0, most)) node.append(...changeLines(change));
  if (changes.length <= most) return node;
  const more = h("button", { type: "button", onclick: () => whole.replaceWith(changesNode(changes, most + 2000)) },
    `Show ${plural(changes.length - most, "more change")}`);
  const whole = h("div", { class: "stack" }, node, more);
  return whole;
}

function changeLines({ kind, path: at, before, after }) {
  if (kind !== "changed") {
    const [mark, sign, value] = kind === "added" ? ["add", "+", after] : ["del", "−", before];
    const text = textOf(value);
    if (text.length === 1 && !isMapping(value)) return [line(mark, `${sign} ${at}: ${shortened(text[0])}`, text[0])];
    return [line(mark, `${sign} ${at}`), ...text.map((each) => line(mark, `${sign}   ${shortened(each)}`, each))];
  }
  if ([before, after].every((value) => isMapping(value) && "order" in value)) {
    const moved = lineSteps(before.order, after.order).filter(([mark]) => mark === "del").map(([, name]) => name);
    return [line("", shortened(`~ ${at}: another order; moved: ${moved.join(", ")}`))];
  }
  let [olds, news] = [textOf(before), textOf(after)];
  // What is written alike and is not the same, such as 5 and "5", differs in JSON.
  if (olds.join("\n") === news.join("\n")) [olds, news] = [before, after].map((value) => [JSON.stringify(value)]);
  if (olds.length === 1 && news.length === 1) {
    const [gone, come] = around(olds[0], news[0]);
    return [line("del", `− ${at}: ${gone}`, olds[0]), line("add", `+ ${at}: ${come}`, news[0])];
  }
  return [line("", `  ${at}`), ...hunks(olds, news)];
}

/** A value line by line. */
function textOf(value) {
  return write(value).trimEnd().split("\n");
}

const CONTEXT = 3;
const WIDTH = 120;
const MOST_COMPARED = 1000;

/** The lines that differ, between some that do not; `old` and `fresh` are lists of lines. */
function hunks(old, fresh) {
  const steps = paired(lineSteps(old, fresh));
  const shown = [];
  let left = 0;
  steps.forEach(([mark, text, whole], n) => {
    const isNear = mark !== "" || steps.slice(Math.max(0, n - CONTEXT), n + CONTEXT + 1).some(([near]) => near !== "");
    if (isNear && left) shown.push(line("soft", `    … ${plural(left, "line")} the same`));
    left = isNear ? 0 : left + 1;
    if (isNear) shown.push(line(mark, `${{ add: "+", del: "−" }[mark] ?? " "}   ${mark ? text : shortened(text)}`, whole));
  });
  if (left) shown.push(line("soft", `    … ${plural(left, "line")} the same`));
  return shown;
}

/** Cut the long lines of a change around what differs, a line that goes with the one that comes in its place. */
function paired(steps) {
  const found = [];
  for (let n = 0; n < steps.length;) {
    if (steps[n][0] === "") {
      found.push([...steps[n], null]);
      n += 1;
      continue;
    }
    let end = n;
    while (end < steps.length && steps[end][0] !== "") end += 1;
    const run = steps.slice(n, end);
    const gone = run.filter(([mark]) => mark === "del").map(([, text]) => text);
    const come = run.filter(([mark]) => mark === "add").map(([, text]) => text);
    const cut = gone.map((text, k) => (k < come.length ? around(text, come[k]) : [shortened(text), null]));
    gone.forEach((text, k) => found.push(["del", cut[k][0], text]));
    come.forEach((text, k) => found.push(["add", k < gone.length ? cut[k][1] : shortened(text), text]));
    n = end;
  }
  return found;
}

/** Return [["", line], ["del", line], ["add", line], ...] that lead from one list of lines to another. */
function lineSteps(old, fresh) {
  let [first, last] = [0, 0];
  while (first < old.length && first < fresh.length && old[first] === fresh[first]) first += 1;
  while (last < old.length - first && last < fresh.length - first && old.at(-1 - last) === fresh.at(-1 - last)) last += 1;
  const [mid, now] = [old.slice(first, old.length - last), fresh.slice(first, fresh.length - last)];
  const same = (lines) => lines.map((each) => ["", each]);
  const between = mid.length > MOST_COMPARED || now.length > MOST_COMPARED
    ? [...mid.map((each) => ["del", each]), ...now.map((each) => ["add", each])] : longestCommon(mid, now);
  return [...same(old.slice(0, first)), ...between, ...same(old.slice(old.length - last))];
}

/** Steps by the longest common subsequence of two lists of lines. */
function longestCommon(old, fresh) {
  const best = Array.from({ length: old.length + 1 }, () => new Uint16Array(fresh.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = fresh.length - 1; j >= 0; j -= 1) {
      best[i][j] = old[i] === fresh[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const steps = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < fresh.length) {
    if (i < old.length && j < fresh.length && old[i] === fresh[j]) {
      steps.push(["", old[i++]]);
      j += 1;
    } else if (i < old.length && (j === fresh.length || best[i + 1][j] >= best[i][j + 1])) steps.push(["del", old[i++]]);
    else steps.push(["add", fresh[j++]]);
  }
  return steps;
}

const shortened = (text) => (text.length <= WIDTH ? text : `${text.slice(0, WIDTH - 1)}…`);

/** Cut two texts to what differs, with some of what is before it and behind it. */
function around(one, other) {
  if (Math.max(one.length, other.length) <= WIDTH) return [one, other];
  let same = 0;
  while (same < one.length && same < other.length && one[same] === other[same]) same += 1;
  const from = Math.max(0, same - WIDTH / 4);
  return [one, other].map((text) => `${from ? "…" : ""}${shortened(text.slice(from))}`);
}

const line = (kind, text, whole = null) => h("span", { class: kind || null, title: whole && !text.endsWith(whole) ? whole : null }, text);
