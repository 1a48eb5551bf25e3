// A rule as text, with its common fields beside it: checked while one types, tried out, and saved with a comment.

import { get, post, Problem, put } from "../api.js";
import { confirmed } from "../confirm.js";
import { fill, freshId, h, say, set } from "../dom.js";
import { crumbs, ruleAddress, ruleOf, untilInForce, whyNot, withRule } from "../ruleset.js";
import { withField, write } from "../yaml.js";
import { conflictNode } from "./conflict.js";
import { findingsNode } from "./findings.js";
import { goTo } from "./import.js";
import { tryPanel } from "./trial.js";

const WAIT_MS = 300;
const FIRST = "name: my-rule\ndescription: What it is for\nmatch: {path: /api/*}\nkey: [user]\nlimits: 100/minute\n";
const INDENT = "    ";
const ABOVE = ["rules:", "  -"];

const list = (text) => text.split(",").map((each) => each.trim()).filter(Boolean);
const joined = (value) => [value ?? []].flat().map(String).join(", ");
const one = (text) => text.trim() || undefined;
const several = (text) => (list(text).length ? list(text) : undefined);
const oneOrMore = (text) => (list(text).length === 1 ? list(text)[0] : several(text));
// A number with a point is text in rules.
const share = (text) => (/^\s*\d+\s*$/.test(text) ? Number(text) : one(text));

const ALGORITHMS = ["packed_window", "rolling_window", "sliding_counter", "fixed_window", "token_bucket", "leaky_bucket"];

/** The fields that have a place beside the text: how each is shown, and what is written for what one enters. */
const FIELDS = [
  { name: "name", label: "Name", hint: "1 to 64 letters, digits, “.”, “_” or “-”.", take: one },
  { name: "description", label: "Description", take: one },
  { name: "key", label: "Counted apart for each", show: joined, take: several,
    hint: "Attributes, such as user, or org, user. Without one, all are counted together." },
  { name: "limits", label: "Limits", show: joined, take: oneOrMore, hint: "100/minute, or several: 10/s burst 20, 1000/day." },
  { name: "algorithm", label: "Algorithm", options: ["", ...ALGORITHMS], none: "as the limit says", take: one },
  { name: "mode", label: "Mode", options: ["", "enforce", "shadow", "off", "block"], none: "enforce (not written)", take: one },
  { name: "enforce_percent", label: "Enforced for, in percent of the keys", type: "number", take: share },
  { name: "on_error", label: "When the store is away", options: ["", "local", "open", "closed"], none: "as the service is set", take: one },
];

export async function show({ app, name, query }) {
  let held = await get("/rules");
  const why = whyNot(app, held.source);
  if (why) throw new Problem(403, why);
  let original = name === null ? null : ruleOf(held.document, name);
  if (original === undefined) throw new Problem(404, `There is no rule ${name}. Perhaps somebody has deleted it.`);
  const copied = name === null && query.get("copy") ? ruleOf(held.document, query.get("copy")) : null;
  const place = `limen-draft ${name ?? "new"}`;
  const begun = original ? write(original) : copied ? write({ ...copied, name: `${copied.name}-copy`.slice(0, 64) }) : FIRST;
  const kept = sessionStorage.getItem(place);
  sessionStorage.removeItem(place);

  const ends = new AbortController();
  let saved = begun;
  let rule = null;
  let timer = 0;
  let turn = 0;
  let isLeaving = false;

  const areaId = freshId("rule"), commentId = freshId("comment"), shadowId = freshId("shadow"), stateId = freshId("state");
  const area = h("textarea", { id: areaId, class: "mono", rows: 18, value: kept ?? begun,
    spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off",
    "aria-describedby": stateId, oninput: typed, onkeydown: keyed, onscroll: () => { gutter.scrollTop = area.scrollTop; } });
  const gutter = gutterOf();
  const stateOf = h("p", { id: stateId, class: "hint", role: "status" });
  const findings = h("div", { class: "stack" });
  const form = FIELDS.map((field) => fieldOf(field, entered));
  const comment = h("input", { id: commentId, maxlength: 2000, placeholder: name === null ? "Why it is there" : "Why it changes", autocomplete: "off" });
  const shadow = h("input", { id: shadowId, type: "checkbox", checked: name === null });
  const save = h("button", { type: "button", class: "main", onclick: () => app.act(save, store) }, name === null ? "Save the new rule" : "Save");
  const conflict = h("div");
  conflict.style.scrollMarginTop = "64px";
  const trial = tryPanel({ app, signal: ends.signal, draft: async () => (await check()) ? { rule, document: withRule(held.document, name, rule) } : null });

  const isDirty = () => area.value !== saved;

  function typed() {
    clearTimeout(timer);
    timer = setTimeout(check, WAIT_MS);
    number([]);
  }

  /** A new line begins where the one above it began. */
  function keyed(event) {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey || event.isComposing) return;
    const above = area.value.slice(0, area.selectionStart).split("\n").at(-1);
    const indent = /^[ ]*/.exec(above)[0] + (/:\s*$/.test(above) ? "  " : "");
    if (!indent) return;
    event.preventDefault();
    // So that the browser can undo it; it tells of the input by itself.
    document.execCommand("insertText", false, `\n${indent}`);
  }

  function entered(field, text) {
    if (!rule) return;
    area.value = withField(area.value, rule, field.name, field.take(text));
    const value = field.take(text);
    rule = { ...rule, [field.name]: value };
    if (value === undefined) delete rule[field.name];
    typed();
  }

  function number(marked) {
    const lines = area.value.split("\n").length;
    fill(gutter, Array.from({ length: lines }, (_, n) => {
      const isWrong = marked.includes(n + 1);
      return h("div", { class: isWrong ? "problem" : null }, isWrong ? `● ${n + 1}` : String(n + 1));
    }));
    gutter.scrollTop = area.scrollTop;
  }

  /** Have the text checked. Returns whether it can be saved; an answer to an older text counts no more. */
  async function check() {
    clearTimeout(timer);
    turn += 1;
    const mine = turn;
    let said;
    try {
      said = await post("/rules/validate", { text: wrapped(area.value), want: "document" }, ends.signal);
    } catch (problem) {
      if (problem.name === "AbortError") return false;
      if (!(problem instanceof Problem)) throw problem;
      say(stateOf, `It could not be checked. ${problem.detail}`);
      return false;
    }
    if (mine !== turn || ends.signal.aborted) return false;
    const found = said.document?.rules?.[0];
    rule = found !== null && typeof found === "object" && !Array.isArray(found) ? found : null;
    const problems = [...said.problems.map(unwrapped), ...clashes()];
    fill(findings, findingsNode(problems, said.advice.map(unwrapped), (line) => goTo(area, line)));
    number(problems.map(({ line }) => line));
    area.setAttribute("aria-invalid", String(problems.length > 0));
    say(stateOf, problems.length ? "This cannot be saved yet." : isDirty() ? "Valid, and not saved yet." : "Valid.");
    for (const each of form) each.show(rule);
    const plain = rule && (rule.mode === undefined || rule.mode === "enforce");
    shadow.disabled = !plain;
    trial.suggest(rule);
    return problems.length === 0 && rule !== null;
  }

  /** What is wrong with this rule among the others: the service is shown this one alone, with each letter. */
  function clashes() {
    if (rule?.name === undefined || String(rule.name) === name) return [];
    const wrong = [];
    const line = 1 + area.value.split("\n").findIndex((each) => /^name:/.test(each));
    const add = (message) => wrong.push({ path: "name", message, line: line || null });
    if (ruleOf(held.document, String(rule.name))) add("there is a rule of this name already");
    const users = name === null ? [] : (held.document.exemptions ?? []).filter((each) => (each.rules ?? []).map(String).includes(name));
    if (users.length) add(`the exemption ${users.map((each) => each.name).join(", ")} is about ${name}: it would name no rule any more`);
    return wrong;
  }

  async function store() {
    if (!(await check())) {
      area.focus();
      throw new Problem(422, "This cannot be saved yet: look at what stands below the text.");
    }
    const asShadow = shadow.checked && !shadow.disabled;
    const mine = asShadow ? { ...rule, mode: "shadow" } : rule;
    const document = withRule(held.document, name, mine);
    let version;
    try {
      version = await put("/rules", { document, base: held.latest, comment: comment.value });
      await untilInForce(version.version);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (problem.status === 409) return clash(mine);
      const elsewhere = problem.body.problems ?? [];
      if (elsewhere.length) fill(findings, findingsNode(elsewhere, [], () => {}));
      throw problem;
    }
    isLeaving = true;
    app.tell(asShadow ? `${mine.name} is saved as a shadow, in version ${version.version}.` : `${mine.name} is saved, in version ${version.version}.`);
    return app.go(ruleAddress(String(mine.name)));
  }

  /** Somebody else was faster: show both, and let the second one choose. */
  async function clash(mine) {
    const theirs = await get("/rules");
    const other = ruleOf(theirs.document, name ?? String(mine.name)) ?? null;
    const after = (work) => () => {
      fill(conflict);
      [held, original] = [theirs, name === null ? null : other];
      work();
    };
    fill(conflict, conflictNode({
      mine, theirs, other, original,
      onkeep: after(() => app.act(save, store)),
      ontake: after(() => { saved = area.value = write(other); check(); area.focus(); }),
      onedit: after(() => { check(); area.focus(); }),
    }));
    conflict.querySelector("h2").focus({ preventScroll: true });
    conflict.scrollIntoView({ block: "start" });
    return null;
  }

  const mayLeave = () => confirmed({ title: "Leave without saving", text: "What you wrote here is not saved.", action: "Leave", danger: true });

  async function clicked(event) {
    const link = event.target.closest?.("a[href^='/']");
    if (!link || !isDirty() || isLeaving || event.button || event.metaKey || event.ctrlKey || event.shiftKey || link.target) return;
    event.preventDefault();
    event.stopPropagation();
    if (!(await mayLeave())) return;
    isLeaving = true;
    app.go(link.getAttribute("href"));
  }

  /** Back, forth: the browser has gone already. Come here again, ask, and go then. */
  function hold() {
    if (!isDirty() || isLeaving) return false;
    history.pushState(null, "", here);
    mayLeave().then((yes) => {
      isLeaving = yes;
      if (yes) history.back();
    });
    return true;
  }

  function closing(event) {
    if (isDirty() && !isLeaving) event.preventDefault();
  }

  const here = location.pathname + location.search;
  document.addEventListener("click", clicked, true);
  addEventListener("beforeunload", closing);
  number([]);
  await check();

  const shadowLabel = h("label", { for: shadowId }, "Save as a shadow first: it counts and reports, and refuses nobody");
  shadowLabel.style.flex = "1";
  const editorBox = h("div", null, gutter, area);
  Object.assign(editorBox.style, { position: "relative", display: "flex", paddingLeft: "3.4em" });
  const node = h("section", null,
    name === null ? crumbs("New rule") : crumbs("Edit", name),
    h("h1", null, name === null ? "New rule" : `Edit ${name}`),
    kept !== null && kept !== begun ? h("p", { class: "note" }, "This is your text from before; it was not saved. ",
      h("button", { type: "button", onclick: (event) => { area.value = begun; event.target.parentNode.remove(); check(); } }, "Begin anew")) : null,
    held.latest > held.version
      ? h("p", { class: "note" }, `You edit version ${held.version}, which holds. Version ${held.latest} is newer, and stays in the history.`) : null,
    conflict,
    h("div", { class: "split" },
      h("div", null,
        h("section", { class: "card" },
          h("div", { class: "field" }, h("label", { for: areaId }, "The rule, as YAML"), editorBox, stateOf), findings, reference()),
        h("section", { class: "card" },
          h("h2", null, "Save"),
          h("div", { class: "field" }, h("label", { for: commentId }, "Comment"), comment),
          h("div", { class: "field check" }, shadow, shadowLabel),
          h("div", { class: "row" }, save, h("a", { class: "button quiet", href: name === null ? "/rules" : ruleAddress(name) }, "Cancel")))),
      h("div", null, h("section", { class: "card" }, h("h2", null, "Common fields"), form.map((each) => each.node)), trial.node)));
  return {
    title: name === null ? "New rule" : `Edit ${name}`,
    node,
    hold,
    close() {
      // Whoever is signed out in the middle of it finds the text again.
      if (isDirty() && !isLeaving) sessionStorage.setItem(place, area.value);
      clearTimeout(timer);
      ends.abort();
      document.removeEventListener("click", clicked, true);
      removeEventListener("beforeunload", closing);
    },
  };
}

/** A rule's text as the only rule of a set, so that lines can be told. */
const wrapped = (text) => [...ABOVE, ...text.replace(/\r\n?/g, "\n").split("\n").map((line) => (line.trim() === "" ? "" : INDENT + line))].join("\n");

function unwrapped({ path, message, line }) {
  return { path: path.replace(/^rules\[0\]\.?/, ""), message, line: line === null ? null : Math.max(1, line - ABOVE.length) };
}

function gutterOf() {
  const gutter = h("div", { class: "mono soft", "aria-hidden": "true" });
  Object.assign(gutter.style, { position: "absolute", inset: "0 auto 0 0", width: "3.4em", padding: "9px 8px 9px 0",
    textAlign: "right", overflow: "hidden", lineHeight: "1.5", fontSize: "13px", userSelect: "none" });
  return gutter;
}

function fieldOf(field, entered) {
  const id = freshId("field");
  const input = field.options
    ? h("select", { id, onchange: () => entered(field, input.value) }, field.options.map((value) => h("option", { value }, value || field.none)))
    : h("input", { id, type: field.type ?? "text", autocomplete: "off", spellcheck: "false", oninput: () => entered(field, input.value),
      ...(field.type === "number" ? { min: 0, max: 100, step: "any", placeholder: "100" } : {}) });
  const hint = field.hint ? h("p", { id: `${id}-hint`, class: "hint" }, field.hint) : null;
  if (hint) set(input, "aria-describedby", hint.id);
  return {
    node: h("div", { class: "field" }, h("label", { for: id }, field.label), input, hint),
    /** Say what the text says; while somebody types here, it is the text that follows. */
    show(rule) {
      input.disabled = rule === null;
      if (rule === null || document.activeElement === input) return;
      const value = rule[field.name];
      input.value = field.show ? field.show(value) : value === undefined || value === null ? "" : String(value);
    },
  };
}

const REFERENCE = [
  ["match", "{path: /search/*, method: [GET, POST]}", "which requests; all of it has to hold"],
  ["", "{region: {not: eu}, user: {present: true}}", "none of these; is there"],
  ["key", "[user]", "what is counted apart"],
  ["missing", "deny", "without an attribute of key: skip the rule, or deny"],
  ["limits", "[10/s burst 20, 1000/day, 20000/month]", "all of them hold"],
  ["tiers", "{by: plan, limits: {free: 60/minute, pro: unlimited}, default: 30/minute}", "limits by plan"],
  ["cost", "tokens", "a number, or the attribute that holds it"],
  ["concurrency", "{slots: 3, lease: 60s}", "how many at once"],
  ["variants", "[{name: b, percent: 10, limits: 200/minute}]", "other limits for a share of the keys"],
  ["overrides", "[{key: {user: 42}, limits: 5000/hour, ends: 2026-12-24}]", "other limits for single keys"],
  ["starts, ends", "2026-12-24T18:00Z", "when it is there"],
];

function reference() {
  return h("details", null, h("summary", null, "What can be written"),
    h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": "Fields of a rule" },
      h("table", null, h("caption", null, "Fields of a rule"),
        h("thead", null, h("tr", null, ["Field", "For example", "Means"].map((word) => h("th", { scope: "col" }, word)))),
        h("tbody", null, REFERENCE.map(([field, example, means]) =>
          h("tr", null, h("td", null, field), h("td", { class: "mono" }, example), h("td", null, means)))))),
    h("p", { class: "hint" }, "A text that begins with a star needs quotes: \"*.png\". Comments, after #, are not kept: use the description."));
}
