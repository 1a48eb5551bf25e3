// The overview: what is decided now, how the store and the processes are, and what wants attention.

import { get, path, Problem } from "../api.js";
import { completed, sparkline, timeSeries } from "../charts.js";
import { h, say, set } from "../dom.js";
import { count, percent, plural, rate, seconds, timeOfDay } from "../format.js";
import { keyed } from "../keyed.js";
import { openAlerts, pastAlerts, warningsOf } from "./alerts.js";
import { fleetOf, storeOf } from "./fleet.js";
import { keyLink, ruleLink } from "./links.js";

const WINDOW_S = 300;
const ROUND_MS = 5000;
const INSTANCES_MS = 2000;
const MOST_RULES = 8;
const BUCKETS = 60;

export async function show({ live }) {
  const end = new AbortController();
  const [insight, alerts, instances, stats] = await Promise.all([
    get(`/insight?window=${WINDOW_S}`), get("/alerts"), instancesOrWhy(), get("/stats")]);

  const head = headOf();
  const warnings = warningsOf();
  const tiles = tilesOf();
  const chart = trafficOf(insight);
  const opened = openAlerts();
  const past = pastAlerts();
  const rules = rulesOf(live, end.signal);
  const denied = deniedOf();
  const store = storeOf();
  const fleet = fleetOf();
  const node = h("div", null,
    head.node, warnings.node, opened.node, tiles.node, chart.node,
    h("div", { class: "split" },
      h("div", null, rules.node, denied.node),
      h("div", null, store.node, fleet.node, past.node)));

  function hear(now) {
    head.hear(now);
    tiles.hear(now);
    rules.hear();
    store.hear(now);
  }

  function seeInsight(insight) {
    chart.see(insight);
    rules.see(insight);
    denied.see(insight);
    if (live.stats === null) tiles.hear(fromInsight(insight), "last 5 minutes");
  }

  function seeAlerts(alerts) {
    opened.see(alerts);
    past.see(alerts);
  }

  function seeStats(stats) {
    head.see(stats.health);
    store.see(stats);
    warnings.see(stats.health);
  }

  const seeFleet = (told) => fleet.see(told, live.stats);
  const rounds = [
    every(ROUND_MS, end.signal, async (signal) => {
      const found = await Promise.all([
        get(`/insight?window=${WINDOW_S}`, signal), get("/alerts", signal), get("/stats", signal)]);
      seeInsight(found[0]);
      seeAlerts(found[1]);
      seeStats(found[2]);
    }),
    every(INSTANCES_MS, end.signal, async (signal) => seeFleet(await instancesOrWhy(signal))),
  ];
  const ends = [
    live.on("stats", hear),
    live.on("alert", () => rounds[0]()),
    live.on("state", async (state) => {
      head.turn(state);
      // What was missed meanwhile is known to the service.
      if (state === "open") await rounds[0]();
    }),
  ];

  seeStats(stats);
  seeAlerts(alerts);
  seeInsight(insight);
  seeFleet(instances);
  if (live.stats !== null) hear(live.stats);
  head.turn(live.state);
  return {
    title: "Overview",
    node,
    close() {
      end.abort();
      for (const each of ends) each();
    },
  };
}

/** Do something again and again while somebody looks; returns what does it at once. */
function every(wait, signal, work) {
  let timer = 0;
  async function turn() {
    clearTimeout(timer);
    if (document.visibilityState === "visible") await work(signal).catch(ignored);
    clearTimeout(timer);
    if (!signal.aborted) timer = setTimeout(turn, wait);
  }
  timer = setTimeout(turn, wait);
  document.addEventListener("visibilitychange", turn, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  return turn;
}

/** A round that failed is followed by another one; that the service is away, the frame says. */
function ignored(error) {
  if (!(error instanceof Problem) && error.name !== "AbortError") throw error;
}

async function instancesOrWhy(signal) {
  try {
    return await get("/instances", signal);
  } catch (problem) {
    if (!(problem instanceof Problem) || problem.status === 0 || problem.status === 401) throw problem;
    return { why: problem.detail, instances: [] };
  }
}

function fromInsight({ to, shared, requests, latency, instances }) {
  const a = (number) => number / WINDOW_S;
  return { at: to, shared, instances: instances.length, latency,
    a_second: { allowed: a(requests.allowed), denied: a(requests.denied), degraded: a(requests.degraded) } };
}

function headOf() {
  const pill = h("span", { class: "pill off" }, "connecting");
  const told = h("span", { class: "hint" });
  const alone = h("p", { class: "note", hidden: true });
  let at = null, health = null, state = "connecting";

  function write() {
    const lost = state === "lost";
    pill.className = `pill ${lost ? "denied" : state === "open" ? (health?.status === "ok" ? "allowed" : "degraded") : "off"}`;
    say(pill, lost ? "not answering" : state === "open" ? health?.status ?? "ok" : "connecting");
    const rules = health?.rules ? `Rules version ${health.rules}, in force for ${seconds(Math.floor(health.rules_age))}` : "No rules are in force";
    say(told, lost && at !== null ? `These figures are of ${timeOfDay(at)}, when the service last answered.` : rules);
  }

  return {
    node: h("div", { class: "stack" }, h("div", { class: "row" }, h("h1", null, "Overview"), pill, told), alone),
    hear(now) {
      at = now.at;
      alone.hidden = now.shared;
      if (now.shared) return;
      const why = now.store?.length
        ? "Redis, by which processes tell each other, does not answer."
        : "The store is in memory, so nothing is shared. With a store on Redis, they are sums over all processes.";
      say(alone, `The figures on this page are of one process alone. ${why}`);
    },
    see(next) {
      health = next;
      write();
    },
    turn(next) {
      state = next;
      write();
    },
  };
}

function tilesOf() {
  const tile = (kind, what, title) => {
    const much = h("span", { class: "much" }, "–");
    const aside = h("span", { class: "aside" }, "\u00a0");
    return { much, aside, node: h("div", { class: `tile ${kind}`, title }, h("span", { class: "what" }, what), much, aside) };
  };
  const allowed = tile("allowed", "Allowed", "Requests that were let pass, on average of the last 5 to 10 seconds");
  const denied = tile("denied", "Denied", "Requests that were refused, on average of the last 5 to 10 seconds");
  const degraded = tile("degraded", "Degraded", "Decided without the store. They are among the allowed or the denied too.");
  const requests = tile("", "Requests, p99", "99 of 100 answers of the service took no longer");
  const store = tile("", "Store, p99", "99 of 100 round trips to the store took no longer");
  const all = [allowed, denied, degraded, requests, store];
  const told = h("p", { class: "hint" });
  return {
    node: h("section", { class: "stack", "aria-label": "Now" }, h("div", { class: "tiles" }, all.map((each) => each.node)), told),
    hear({ a_second: now, latency }, range = "last 5 to 10 seconds") {
      say(told, `Rates and times are of the ${range}.`);
      const total = now.allowed + now.denied;
      const share = (part) => (total > 0 ? `${percent(part / total)} of all` : "no requests");
      say(allowed.much, rate(now.allowed));
      say(allowed.aside, share(now.allowed));
      say(denied.much, rate(now.denied));
      say(denied.aside, share(now.denied));
      say(degraded.much, rate(now.degraded));
      say(degraded.aside, now.degraded > 0 ? share(now.degraded) : "the store counts all");
      for (const [tile, of, none] of [[requests, latency.requests, "none were asked"], [store, latency.store, "no round trips"]]) {
        say(tile.much, within(of.p99, of));
        say(tile.aside, of.count ? `p50 ${within(of.p50, of)}` : none);
      }
    },
  };
}

/** A percentile: null is none at all, or more than what is measured. */
function within(value, { count: number, above }) {
  if (!number) return "–";
  return value === null ? `> ${seconds(above)}` : seconds(value);
}

/** Drawn from slices that are over: the live rates take in seconds that not all processes have told of yet. */
function trafficOf(insight) {
  const kinds = [["Allowed", "allowed"], ["Denied", "denied"], ["Degraded", "degraded"]];
  const title = h("h2", null);
  const dataOf = (insight) => {
    const points = seedsOf(insight);
    const to = points.at(-1)?.at ?? insight.to;
    say(title, `Requests per second, last 5 minutes to ${timeOfDay(to)}`);
    return { from: to - WINDOW_S, to, series: kinds.map(([name, kind]) => ({
      name, kind, line: kind === "degraded", points: points.map((one) => [one.at, one[kind]]) })) };
  };
  const chart = timeSeries({ ...dataOf(insight), height: 190, unit: "/s", label: "Requests per second in the last five minutes" });
  return {
    node: h("section", { class: "card" }, title, chart.node),
    see: (insight) => chart.update(dataOf(insight)),
  };
}

/** Rates of the slices that are over, each at its end, as the live ones are of the seconds before. */
function seedsOf({ series, to }) {
  return completed(series, to).map((one) => ({
    at: one.at + one.seconds,
    allowed: one.allowed / one.seconds,
    denied: one.denied / one.seconds,
    degraded: one.degraded / one.seconds,
    shadow_denied: (one.shadow_denied ?? 0) / one.seconds,
  }));
}

/** Points since a moment: the live ones, and where there are none, those of the slices. */
function merged(seeds, lived, since) {
  const seconds = new Set(lived.flatMap(({ at }) => [-2, -1, 0, 1, 2].map((near) => Math.round(at) + near)));
  const points = [...seeds.filter(({ at }) => !seconds.has(Math.round(at))), ...lived].filter(({ at }) => at >= since);
  return points.sort((a, b) => a.at - b.at);
}

function rulesOf(live, signal) {
  const body = h("tbody");
  const none = h("p", { class: "hint" }, "No rule decided anything in the last 5 minutes. ", h("a", { href: "/live" }, "How to make some traffic"));
  const box = h("div", { class: "table-box" }, h("table", null,
    h("caption", null, "The busiest rules of the last 5 minutes"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Rule"), h("th", { scope: "col" }, "Trend"),
      ["Decided", "Denied"].map((word) => h("th", { scope: "col", class: "number" }, word)),
      h("th", { scope: "col", class: "number wide-only", title: "Denied, of the allowed and the denied together" }, "Refused"))),
    body));
  let busiest = [];
  const list = keyed(body, ({ rule }) => rule, ({ rule }) => rowOf(rule));

  function rowOf(name) {
    const spark = sparkline([], { label: "" });
    const all = h("td", { class: "number" }, "–"), denied = h("td", { class: "number" }, "–"), share = h("td", { class: "number wide-only" }, "–");
    const shadow = h("span", { class: "pill shadow", hidden: true });
    const node = h("tr", null, h("th", { scope: "row" }, ruleLink(name), " ", shadow), h("td", null, spark.node), all, denied, share);
    let seeds = [], sums = NOTHING;
    get(`${path`/insight/rules/${name}`}?window=${WINDOW_S}`, signal).then((told) => { seeds = seedsOf(told); show(); }).catch(ignored);

    function show() {
      const to = live.stats?.at ?? Date.now() / 1000;
      const lived = live.history.map((one) => ({ at: one.at, ...(one.rules.find(({ rule }) => rule === name) ?? NOTHING) }));
      const points = merged(seeds, lived, to - WINDOW_S);
      spark.update(buckets(points, to, total), buckets(points, to, (one) => one.denied),
        `${name}: ${count(total(sums))} decided in the last 5 minutes, ${count(sums.denied)} of them denied`);
    }

    // All columns are of the same five minutes.
    function see(told) {
      sums = told;
      say(all, count(total(told)));
      say(denied, count(told.denied));
      say(share, percent(told.refused_share));
      shadow.hidden = !(told.shadow_denied > 0);
      if (!shadow.hidden) say(shadow, `shadow: ${plural(told.shadow_denied, "time")}`);
      show();
    }

    return { node, see };
  }

  return {
    node: h("section", { class: "card" }, h("div", { class: "row apart" }, h("h2", null, "Busiest rules, last 5 minutes"), h("a", { href: "/rules" }, "All rules")), none, box),
    see({ rules }) {
      busiest = rules.toSorted((a, b) => total(b) - total(a) || (a.rule < b.rule ? -1 : 1)).slice(0, MOST_RULES);
      none.hidden = busiest.length > 0;
      box.hidden = !busiest.length;
      list(busiest);
    },
    hear: () => list(busiest),
  };
}

const NOTHING = { allowed: 0, denied: 0, degraded: 0, shadow_denied: 0 };
const total = (one) => one.allowed + one.denied + one.degraded + one.shadow_denied;

/** Values in equal steps of time up to now: the last one known in each. */
function buckets(points, to, value) {
  const step = WINDOW_S / BUCKETS;
  const values = Array(BUCKETS).fill(null);
  for (const point of points) {
    const n = Math.min(BUCKETS - 1, Math.floor((point.at - (to - WINDOW_S)) / step));
    if (n >= 0) values[n] = value(point);
  }
  // Points do not fall into steps one by one: one step without any is as the one before, more are a hole.
  return values.map((one, n) => one ?? values[n - 1] ?? 0);
}

function deniedOf() {
  const body = h("tbody");
  const none = h("p", { class: "hint" }, "Nobody was refused in the last 5 minutes.");
  const box = h("div", { class: "table-box" }, h("table", null,
    h("caption", null, "The keys that were refused most often in the last 5 minutes"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Key"), h("th", { scope: "col" }, "Rule"), h("th", { scope: "col", class: "number" }, "Refused"))),
    body));
  const list = keyed(body, ({ key, rule }) => JSON.stringify([key, rule]), ({ key, rule }) => {
    const times = h("td", { class: "number" });
    return {
      node: h("tr", null, h("th", { scope: "row", class: "name" }, keyLink(key, rule)), h("td", null, ruleLink(rule)), times),
      see({ count: number, at_most_too_high: error }) {
        say(times, `${error ? "about " : ""}${count(number)}`);
        set(times, "title", error ? `Too high by ${count(error)} at most` : null);
      },
    };
  });
  return {
    node: h("section", { class: "card" },
      h("div", { class: "row apart" }, h("h2", null, "Refused most often, last 5 minutes"), h("a", { href: "/live?outcome=denied" }, "As it happens")),
      none, box),
    see({ top_denied: top }) {
      none.hidden = top.length > 0;
      box.hidden = !top.length;
      list(top);
    },
  };
}
