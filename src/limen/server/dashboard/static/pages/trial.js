// Try a request: what the rules would say to it with the draft among them. Nothing is charged.

import { post, Problem } from "../api.js";
import { fill, freshId, h, say } from "../dom.js";
import { count, plural, seconds } from "../format.js";
import { ruleAddress } from "../ruleset.js";

const MOST = 20;
const SAMPLES = { ip: "192.0.2.7", user: "42", path: "/", method: "GET" };

/** Return {node, suggest(rule)}. `draft()` gives {rule, document}, or null when the text cannot be used. */
export function tryPanel({ app, signal, draft }) {
  const id = freshId("request");
  const area = h("textarea", { id, class: "mono", rows: 4, spellcheck: "false", autocomplete: "off", placeholder: "user=42\npath=/search",
    oninput: () => { isOwn = true; } });
  const told = h("p", { class: "problem", role: "alert" });
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const button = h("button", { type: "button", onclick: () => app.act(button, attempt) }, "Try it");
  let isOwn = false;

  async function attempt() {
    say(told, "");
    fill(result);
    const [attributes, wrong] = read(area.value);
    if (wrong) return say(told, wrong);
    const made = await draft();
    if (!made) return say(told, "The rule has to be valid first.");
    try {
      const said = await post("/explain", { attributes, document: made.document, rule: String(made.rule.name) }, signal);
      fill(result, answer(said, String(made.rule.name)));
    } catch (problem) {
      if (problem.name === "AbortError") return undefined;
      if (!(problem instanceof Problem)) throw problem;
      say(told, problem.detail);
    }
    return undefined;
  }

  return {
    node: h("section", { class: "card" }, h("h2", null, "Try a request"),
      h("p", { class: "hint" }, "By the text as it stands, with all other rules. Nothing is saved, and nothing is charged."),
      h("div", { class: "field" }, h("label", { for: id }, "Attributes, one in a line"), area),
      h("div", { class: "row" }, button), told, result),
    /** Write down a request that the rule is for, until somebody writes another. */
    suggest(rule) {
      if (!isOwn && rule) area.value = sample(rule);
    },
  };
}

/** Read lines of name=value. Returns [attributes, what is wrong]. */
function read(text) {
  const found = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) return [null, `“${line}” is not of the form name=value.`];
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return [found, ""];
}

function sample(rule) {
  const found = new Map();
  for (const [name, condition] of Object.entries(rule.match ?? {})) {
    const asked = condition !== null && typeof condition === "object" && !Array.isArray(condition) ? condition.is : condition;
    const [first] = [asked ?? []].flat();
    if (first !== undefined) found.set(name, name === "ip" ? String(first).replace(/\/\d+$/, "") : fitting(String(first)));
    else if (condition?.present !== false) found.set(name, SAMPLES[name] ?? "x");
  }
  for (const name of [rule.key ?? []].flat()) if (!found.has(name)) found.set(String(name), SAMPLES[name] ?? "x");
  return [...found].map(([name, value]) => `${name}=${value}`).join("\n");
}

/** A text of this form: a star is any characters, unless it has a \ before it. */
const fitting = (pattern) => pattern.replace(/\\\*|\*/g, (star) => (star === "*" ? "x" : "*"));

function answer({ rules, verdict, exempt, unused }, name) {
  const mine = rules.find((each) => each.rule === name);
  const others = rules.filter((each) => each.applies && each.rule !== name);
  return [
    h("p", null, h("span", { class: `pill ${verdict.allowed ? "allowed" : "denied"}` }, verdict.allowed ? "allowed" : "refused"), " ", verdictText(verdict)),
    mine ? h("p", null, h("span", { class: `pill ${mine.applies ? "allowed" : "off"}` }, mine.applies ? "applies" : "does not apply"),
      ` ${name}${mine.because ? `: ${mine.because}` : ""}`) : null,
    mine?.conditions.length ? h("ul", null, mine.conditions.map((each) => h("li", null, `${each.holds ? "✓" : "✗"} ${each.attribute} ${each.asked}`,
      h("span", { class: "hint" }, each.got === null ? " (absent)" : ` (got ${each.got})`)))) : null,
    exempt.length ? h("p", null, `Exempt by ${exempt.join(", ")}.`) : null,
    others.length ? othersNode(others) : h("p", { class: "hint" }, "No other rule applies."),
    unused.length ? h("p", { class: "hint" }, `No rule looks at ${unused.join(", ")}.`) : null,
  ];
}

function othersNode(others) {
  // In another tab: who tries a draft has not saved it.
  const links = others.slice(0, MOST).map(({ rule }) => h("a", { href: ruleAddress(rule), target: "_blank", rel: "noopener" }, rule));
  return h("p", null, `${plural(others.length, "other rule applies", "other rules apply")}: `,
    links.flatMap((link, n) => (n ? [", ", link] : [link])), others.length > MOST ? ` and ${count(others.length - MOST)} more` : "");
}

function verdictText(verdict) {
  if (verdict.rule === null || verdict.rule === undefined) return "no limit holds for it";
  if (!verdict.allowed) return `by ${verdict.rule}${verdict.retry_after === null ? "" : `, again in ${seconds(verdict.retry_after)}`}`;
  return `${verdict.rule} binds${verdict.remaining === null || verdict.remaining === undefined ? "" : `, ${count(verdict.remaining)} left`}`;
}
