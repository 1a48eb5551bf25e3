// One key: where it stands under every rule, what it was told lately, and what is special about it.

import { Problem } from "../api.js";
import { freshId, h, say } from "../dom.js";
import { specialCases } from "./cases.js";
import { addressOf, told, understood } from "./facts.js";
import { decisionsOf } from "./kept.js";
import { standingOf } from "./standing.js";

const LOOK_MS = 3000;

export async function show({ app, query }) {
  const asked = await understood(query);
  // What the parts share. `locked` says why rules cannot be changed here, if so.
  const page = { app, asked, facts: asked.facts, ends: new AbortController(), again, locked: null };
  const standing = standingOf(page);
  const decisions = decisionsOf(page);
  const cases = specialCases(page, query.get(".search") ?? "");
  page.standing = standing;
  await refresh();
  let timer = setTimeout(watch, LOOK_MS);

  async function refresh() {
    await cases.look();
    await standing.look();
    await decisions.look();
  }

  /** Show what became of a change; other rules hold within a second, so look once more then. */
  async function again(isLater = false) {
    try {
      await refresh();
      if (!isLater) return;
      await new Promise((resolve) => setTimeout(resolve, 1200));
      if (!page.ends.signal.aborted) await refresh();
    } catch (problem) {
      if (problem instanceof Problem) app.tell(problem.detail, "failed");
      else if (problem.name !== "AbortError") throw problem;
    }
  }

  async function watch() {
    if (document.visibilityState === "visible" && asked.facts) {
      try {
        await standing.look();
        await decisions.look();
      } catch (problem) {
        // The frame says that the service is away; what is shown stays until it is back.
        if (!(problem instanceof Problem) && problem.name !== "AbortError") throw problem;
      }
    }
    if (!page.ends.signal.aborted) timer = setTimeout(watch, LOOK_MS);
  }

  if (asked.facts && query.has("key")) history.replaceState(null, "", addressOf(asked.facts, asked.rule));
  const text = asked.facts ? told(asked.facts) : asked.key;
  return {
    title: text ? `${text} · Keys` : "Keys",
    node: h("div", { class: "page" }, h("h1", null, "Keys"),
      h("p", { class: "hint" }, "Where a request stands under every rule that applies to it. Looking charges nothing."),
      attributeForm(page), standing.node, decisions.node, cases.node),
    close() {
      clearTimeout(timer);
      page.ends.abort();
    },
  };
}

/** The attributes of a request, as fields. */
function attributeForm({ app, asked }) {
  const rows = h("div", { class: "stack" });
  const problem = h("p", { class: "problem", role: "alert" });
  const all = [];

  function add(name = "", value = "", wanted = "") {
    const ids = [freshId("name"), freshId("value")];
    const row = {
      name: h("input", { id: ids[0], value: name, class: "mono", placeholder: "such as user", autocomplete: "off", spellcheck: "false", autocapitalize: "off" }),
      value: h("input", { id: ids[1], value, class: "mono", placeholder: wanted ? `such as ${wanted}` : all.length ? "" : "such as 42", autocomplete: "off", spellcheck: "false", autocapitalize: "off" }),
    };
    const gone = h("button", { type: "button", class: "quiet", "aria-label": "Remove this attribute", onclick() {
      all.splice(all.indexOf(row), 1);
      row.node.remove();
      if (!all.length) add();
      all.at(-1).name.focus();
    } }, "×");
    const fields = [h("div", { class: "field" }, h("label", { for: ids[0] }, "Attribute"), row.name),
      h("div", { class: "field" }, h("label", { for: ids[1] }, "Value"), row.value)];
    row.node = h("div", { class: "row attribute" }, fields, gone);
    all.push(row);
    rows.append(row.node);
    return row;
  }

  function look(event) {
    event.preventDefault();
    const filled = all.map((row) => [row.name.value.trim(), row.value.value, row]).filter(([name, value]) => name || value);
    for (const row of all) for (const field of [row.name, row.value]) field.removeAttribute("aria-invalid");
    const wrong = filled.find(([name, value], n) => !name || !value || filled.findIndex((other) => other[0] === name) < n);
    if (wrong || !filled.length) {
      const [name, value, row] = wrong ?? ["", "", all[0]];
      say(problem, name && value ? `The attribute ${name} stands twice.` : "An attribute has a name and a value, such as user and 42.");
      const field = name && !value ? row.value : row.name;
      field.setAttribute("aria-invalid", "true");
      return field.focus();
    }
    const facts = Object.fromEntries(filled.map(([name, value]) => [name, value]));
    app.go(addressOf(facts, asked.rule));
  }

  for (const [name, value] of Object.entries(asked.facts ?? {})) add(name, value);
  for (const [name, wanted] of Object.entries(asked.more ?? {})) add(name, "", wanted);
  if (!all.length) add();
  const more = h("button", { type: "button", class: "quiet", onclick: () => add().name.focus() }, "Add an attribute");
  return h("form", { class: "card", onsubmit: look, "aria-label": "Attributes of a request", novalidate: true }, rows, problem,
    h("div", { class: "row" }, h("button", { class: "main" }, "Look"), more));
}
