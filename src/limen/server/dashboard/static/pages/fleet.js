// The servers of the store, and the processes that enforce rules: who runs, and who is gone.

import { fill, h, say } from "../dom.js";
import { ago, dayAndTime, plural } from "../format.js";

const GONE_MS = 60_000;

export function storeOf() {
  const told = h("p", { class: "hint" });
  const body = h("tbody");
  const box = h("div", { class: "table-box", hidden: true }, h("table", null,
    h("caption", null, "The servers of the store"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Server"), h("th", { scope: "col" }, "Breaker"),
      h("th", { scope: "col", class: "number", title: "How often its breaker opened since the process that answers started" }, "Opened since start"))),
    body));
  let opened = new Map(), servers = null;

  function write() {
    if (servers === null) return;
    const open = servers.filter(({ state }) => state === "open").length;
    const failed = servers.find(({ fault }) => fault);
    box.hidden = !servers.length;
    say(told, !servers.length ? "It is in memory: each process counts by itself, and what it counted ends with it."
      : open === 1 ? "1 server does not answer and is left alone for now. Decisions are made without it."
      : open ? `${open} servers do not answer and are left alone for now. Decisions are made without them.`
        : failed ? `All servers answer, but not without faults: the last was "${failed.fault}".`
          : "All servers answer, as the process that tells sees it.");
    fill(body, servers.map(({ where, state, fault }) => h("tr", null,
      h("th", { scope: "row", class: "mono" }, where),
      h("td", { title: fault ? `The last fault: ${fault}` : null },
        h("span", { class: `pill ${state === "open" ? "denied" : fault ? "degraded" : "allowed"}` }, state)),
      h("td", { class: "number" }, opened.has(where) ? plural(opened.get(where), "time") : "–"))));
  }

  return {
    node: h("section", { class: "card" }, h("h2", null, "Store"), told, box),
    hear({ store }) {
      if (store === undefined || JSON.stringify(store) === JSON.stringify(servers)) return;
      servers = store;
      write();
    },
    see({ shards }) {
      opened = new Map(shards.map((one) => [one.where, one.opened]));
      servers = shards.map(({ where, state, fault }) => ({ where, state, fault }));
      write();
    },
  };
}

export function fleetOf() {
  const told = h("p", { class: "hint" });
  const body = h("tbody");
  const box = h("div", { class: "table-box" }, h("table", null,
    h("caption", null, "The processes that enforce rules"),
    h("thead", null, h("tr", null, ["Process", "Rules", "From", "Started"].map((word) => h("th", { scope: "col" }, word)))),
    body));
  const gone = new Map();
  let known = new Map(), missed = 0;

  function line(one, usual, since) {
    const other = one.version !== usual;
    return h("tr", { class: since ? "gone" : null },
      h("th", { scope: "row", title: one.id }, `${one.host} · ${one.pid}`),
      h("td", null, since ? h("span", { class: "pill off" }, "gone")
        : h("span", { class: `pill ${other ? "degraded" : "allowed"}`, title: other ? "Other processes run other rules" : null }, one.version || "none")),
      h("td", null, one.source),
      h("td", { title: dayAndTime(one.started_at) }, since ? `gone ${ago(since / 1000)}` : ago(one.started_at)));
  }

  function see({ shared, instances, why }, stats) {
    const now = Date.now();
    if (why) {
      box.hidden = true;
      return say(told, `Which processes run cannot be told. ${why}`);
    }
    const found = new Map(instances.map((one) => [one.id, one]));
    for (const [id, one] of known) if (!found.has(id)) gone.set(id, { one, since: now });
    for (const [id, { since }] of gone) if (found.has(id) || now - since > GONE_MS) gone.delete(id);
    known = found;
    // Each tells of itself once a second. One that was killed is listed for some seconds more.
    const settled = instances.filter((one) => now / 1000 - one.started_at > 15).length;
    missed = shared && stats?.shared && stats.instances < settled ? missed + 1 : 0;
    const versions = new Set(instances.map(({ version }) => version));
    const parts = [shared ? null : "This is the process that answers; without Redis it knows of no others.",
      versions.size > 1 ? "Not all run the same rules. Who is behind follows within seconds." : null,
      missed > 1 ? `${plural(settled - stats.instances, "process has", "processes have")} not been heard of for some seconds.` : null];
    say(told, parts.filter(Boolean).join(" ") || `${plural(instances.length, "process enforces", "processes enforce")} the same rules.`);
    box.hidden = false;
    const usual = mostCommon(instances.map(({ version }) => version));
    fill(body, instances.toSorted((a, b) => (a.host === b.host ? a.pid - b.pid : a.host < b.host ? -1 : 1)).map((one) => line(one, usual, 0)),
      [...gone.values()].map(({ one, since }) => line(one, usual, since)));
    return undefined;
  }

  return { node: h("section", { class: "card" }, h("h2", null, "Processes"), told, box), see };
}

function mostCommon(values) {
  const times = new Map();
  for (const value of values) times.set(value, (times.get(value) ?? 0) + 1);
  return [...times].sort((a, b) => b[1] - a[1])[0]?.[0];
}
