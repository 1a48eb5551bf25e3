// What wants attention: parts of the service that fail, alerts that are open, and those that ended.

import { fill, h, say } from "../dom.js";
import { ago, count, dayAndTime, percent, plural, seconds, timeOfDay } from "../format.js";
import { keyed } from "../keyed.js";
import { keyLink, ruleLink } from "./links.js";

const MOST_ENDED = 5;
const MOST_KEYS = 3;
const TROUBLES = {
  source: "The database or file of the rules does not answer. The last good rules go on to hold.",
  tokens: "The database of tokens does not answer. Tokens that are known go on to hold.",
  "read-only": "The database is read-only: changes to rules and tokens are refused. Decisions go on.",
  schema: "A newer version of limen made the tables of the database: changes to rules and tokens are refused. Decisions go on. Upgrade limen.",
  writes: "The database takes no changes. Rules and tokens that are known go on to hold.",
  cache: "Redis does not hold the rules for other processes.",
  news: "Redis does not tell of new rules: they are found a little later.",
  sharing: "Redis does not carry what processes tell each other.",
  rules: "Other rules are there, and are not believed. The last good ones go on to hold.",
  "last-good": "The last good rules cannot be written to the data folder.",
  switch: "The file of the kill switch cannot be read.",
  instances: "This process cannot tell others that it runs.",
  callback: "A part of this process failed when rules changed.",
};

/** What fails though the service goes on: one notice for all of it. */
export function warningsOf() {
  const node = h("ul", { class: "alerts open", "aria-label": "What wants attention", hidden: true });
  return {
    node,
    see({ trouble }) {
      const told = trouble.map((word) => TROUBLES[word] ?? `Something does not work: ${word}.`);
      node.hidden = !told.length;
      fill(node, h("li", { class: "degraded" }, told.map((text) => h("p", null, text)), h("p", { class: "hint" }, "The log says why.")));
    },
  };
}

export function openAlerts() {
  const node = h("ul", { class: "alerts open", "aria-label": "Open alerts" });
  const list = keyed(node, ({ id }) => id, alertLine);
  return {
    node,
    see({ open }) {
      node.hidden = !open.length;
      list(open);
    },
  };
}

function alertLine({ kind, rule, started }) {
  const text = h("strong", { class: "sentence" });
  const since = h("time", { datetime: new Date(started * 1000).toISOString(), title: dayAndTime(started) });
  const keys = h("ul", { class: "inline" });
  const listKeys = keyed(keys, ([key]) => key, ([key]) => {
    const times = h("span");
    return { node: h("li", null, keyLink(key, rule), " ", times), see: ([, number]) => say(times, plural(number, "time")) };
  });
  return {
    node: h("li", { class: kind === "refusals" || kind === "key" ? "denied" : "degraded" }, h("div", { class: "alert" }, text,
      h("div", { class: "inline hint" }, since, rule === null ? null : h("span", null, "rule ", ruleLink(rule)), keys))),
    see(alert) {
      say(text, alert.text);
      say(since, `since ${timeOfDay(started)}, ${ago(started)}`);
      listKeys(alert.top.slice(0, MOST_KEYS));
    },
  };
}

export function pastAlerts() {
  const told = h("p", { class: "hint" });
  const list = h("ul", { class: "alerts" });
  return {
    node: h("section", { class: "card" }, h("h2", null, "Alerts"), told, list),
    see({ open, more, ended, thresholds }) {
      const { refusal_share: refusals, fallback_share: fallback, store_latency: latency } = thresholds;
      const limits = [refusals && `a rule refuses ${percent(refusals)}`, fallback && `${percent(fallback)} are decided without the store`,
        latency && `the store takes ${seconds(latency)}`].filter(Boolean);
      const rest = more ? `; ${count(more)} more are not told one by one` : "";
      const now = open.length ? `${plural(open.length, "alert is", "alerts are")} open, above${rest}.` : "None is open.";
      say(told, `${now} ${limits.length ? `One begins when ${limits.join(", or ")}.` : "All thresholds are off."}`);
      fill(list, ended.slice(0, MOST_ENDED).map((alert) => h("li", null, h("span", { class: "sentence" }, alert.text),
        h("span", { class: "hint", title: `From ${dayAndTime(alert.started)} to ${dayAndTime(alert.ended)}` }, `from ${timeOfDay(alert.started)} to ${timeOfDay(alert.ended)}, ended ${ago(alert.ended)}`))));
      list.hidden = !ended.length;
    },
  };
}
