// Questions that stop the page until they are answered: one modal dialog for all of them.

import { onSignedOut, Problem } from "./api.js";
import { fill, freshId, h, say } from "./dom.js";

const NEEDED = "This is needed.";
const ENDS = [["", "Never: until somebody ends it"], ["3600", "In an hour"], ["86400", "In a day"],
  ["604800", "In a week"], ["2592000", "In 30 days"], ["at", "At a time of your choice"]];
let cancelOpen = null;

onSignedOut(() => cancelOpen?.());

/** Ask whether to do something. Resolves to true only if the button that says so was used. */
export async function confirmed({ title, text, action, danger = false }) {
  return (await ask({ title, text, action, danger })) !== null;
}

/** Ask for some values. Resolves to {name: value}, or to null when it was cancelled.

A field is {name, label, type, value, hint, required, options, placeholder, when}. Types are those of <input>, "textarea",
"select" and "radio" (options: [value, label] or just the value), "checkbox" (true or false), "ends" (a moment as ISO
8601, or null for never), or `make({id, changed})` which returns {node, read, focus}. `when(values)` says whether it is asked for.
`check(values)` returns null, a sentence, or {name: sentence}; it may do the work itself: a Problem it throws is shown in
the dialog, which stays open. `text`, `action` and `danger` may be functions of the values. */
export function ask({ title, text = "", fields = [], action = "Save", danger = false, check = null }) {
  cancelOpen?.();
  const before = document.activeElement;
  const titleId = freshId("title"), textId = freshId("text");
  const parts = fields.map((field) => ({ ...field, ...fieldOf(field, () => refresh()) }));
  const told = h("p", { class: "problem", role: "alert" });
  const words = h("div", { id: textId, class: "text" });
  const cancel = h("button", { type: "button", class: "quiet", onclick: () => end(null) }, "Cancel");
  const submit = h("button", { type: "submit" });
  const form = h("form", { novalidate: true, onsubmit: answer },
    h("h2", { id: titleId }, title), words, parts.map((part) => part.node), told,
    h("div", { class: "row end" }, cancel, submit));
  const dialog = h("dialog", { class: "ask", "aria-labelledby": titleId, "aria-describedby": textId,
    oncancel: (event) => { event.preventDefault(); end(null); }, onkeydown: keyed }, form);
  let busy = false, finish;
  const leave = () => end(null, true);

  function read() {
    return Object.fromEntries(parts.map((part) => [part.name, part.read()]));
  }

  function refresh() {
    const values = read();
    const of = (given) => (typeof given === "function" ? given(values) : given);
    if (typeof text === "function" || !words.hasChildNodes()) fill(words, of(text));
    if (!busy) say(submit, of(action));
    submit.className = of(danger) ? "danger" : "main";
    for (const part of parts) part.node.hidden = part.when ? !part.when(values) : false;
  }

  function keyed(event) {
    // The key that opened the dialog may still be held down: that is no answer.
    if (event.key === "Enter" && event.repeat) event.preventDefault();
    if (event.key === "Enter" && event.ctrlKey) form.requestSubmit();
  }

  function refuse(problems) {
    const left = [];
    for (const [name, sentence] of Object.entries(typeof problems === "string" ? { "": problems } : problems)) {
      const part = parts.find((each) => each.name === name && !each.node.hidden);
      if (part) part.refuse(sentence);
      else left.push(sentence);
    }
    say(told, left.join(" "));
    parts.find((part) => part.refused())?.focus();
  }

  async function answer(event) {
    event.preventDefault();
    if (busy) return;
    for (const part of parts) part.refuse("");
    say(told, "");
    const values = read();
    const asked = parts.filter((part) => !part.node.hidden);
    const missing = asked.filter((part) => part.required && isEmpty(values[part.name])).map((part) => [part.name, NEEDED]);
    const wrong = asked.filter((part) => part.wrong?.()).map((part) => [part.name, part.wrong()]);
    if (missing.length || wrong.length) return refuse(Object.fromEntries([...missing, ...wrong]));
    if (check) {
      work(true);
      try {
        const problems = await check(values);
        if (problems) return refuse(problems);
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        return refuse(problemsOf(problem, parts));
      } finally {
        work(false);
      }
    }
    end(values, true);
  }

  function work(on) {
    busy = on;
    submit.disabled = cancel.disabled = on;
    refresh();
    if (on) return say(submit, "…");
    // A button that was disabled has lost the focus, and the keyboard would be nowhere.
    if (!dialog.contains(document.activeElement)) submit.focus();
  }

  function end(values, surely = false) {
    if ((busy && !surely) || cancelOpen !== leave) return;
    cancelOpen = null;
    removeEventListener("popstate", leave);
    dialog.close();
    dialog.remove();
    const back = before?.isConnected && before !== document.body ? before : document.getElementById("main");
    back?.focus({ preventScroll: true });
    finish(values);
  }

  cancelOpen = leave;
  addEventListener("popstate", leave);
  refresh();
  document.body.append(dialog);
  dialog.showModal();
  (parts.find((part) => !part.node.hidden) ?? { focus: () => submit.focus() }).focus();
  return new Promise((resolve) => { finish = resolve; });
}

const isEmpty = (value) => value === null || value === "" || (Array.isArray(value) && !value.length);

/** Sort what the service found wrong to the fields that it names: "limits", "key.user", "limits[0]". */
function problemsOf(problem, parts) {
  const found = {};
  const known = problem.body.problems?.length ? problem.body.problems : [{ path: "", message: problem.detail }];
  for (const { path, message } of known) {
    const part = parts.find((each) => path === each.name || path.startsWith(`${each.name}.`) || path.startsWith(`${each.name}[`));
    const name = part?.name ?? "";
    const sentence = part || !path ? message : `${path}: ${message}`;
    found[name] = found[name] ? `${found[name]} ${sentence}` : sentence;
  }
  return found;
}

/** Return {node, read, refuse, refused, focus, wrong?} for one field. */
function fieldOf(field, changed) {
  const id = freshId("field"), hintId = `${id}-hint`, problemId = `${id}-problem`;
  const problem = h("p", { id: problemId, class: "problem", role: "alert" });
  const hint = field.hint ? h("p", { id: hintId, class: "hint" }, field.hint) : null;
  const about = { "aria-describedby": hint ? `${hintId} ${problemId}` : problemId };
  const made = (field.make ?? KINDS[field.type] ?? input)({ ...field, id, about, changed });
  const label = made.isGroup ? null : h("label", { for: id }, field.label);
  const isCheck = field.type === "checkbox";
  const node = made.isGroup
    ? h("fieldset", { class: "field", ...about }, h("legend", null, field.label), made.node, hint, problem)
    : h("div", { class: isCheck ? "field check" : "field" }, isCheck ? [made.node, label] : [label, made.node], hint, problem);
  const marked = made.marked ?? made.node;
  return {
    ...made,
    node,
    focus: made.focus ?? (() => made.node.focus()),
    refused: () => problem.textContent !== "",
    refuse(sentence) {
      say(problem, sentence);
      if (sentence) marked.setAttribute("aria-invalid", "true");
      else marked.removeAttribute("aria-invalid");
    },
  };
}

const KINDS = { textarea, select, radio, checkbox, ends };

function input({ id, about, type = "text", value = "", required, placeholder, changed }) {
  const node = h("input", { id, type, value, placeholder, autocomplete: "off", spellcheck: "false", oninput: changed,
    "aria-required": required ? "true" : null, ...about });
  return { node, read: () => (type === "text" ? node.value.trim() : node.value) };
}

function textarea({ id, about, value = "", placeholder, changed }) {
  const node = h("textarea", { id, rows: 3, placeholder, value, oninput: changed, ...about });
  return { node, read: () => node.value.trim() };
}

const pairs = (options) => options.map((option) => (Array.isArray(option) ? option : [option, option]));

function select({ id, about, value, options, changed }) {
  const node = h("select", { id, onchange: changed, ...about },
    pairs(options).map(([each, label]) => h("option", { value: each }, label)));
  if (value !== undefined) node.value = value;
  return { node, read: () => node.value };
}

function radio({ id, value, options, changed }) {
  const buttons = pairs(options).map(([each]) => h("input", { type: "radio", name: id, id: `${id}-${each}`, value: each,
    checked: each === value, onchange: changed }));
  const node = h("div", { class: "choices" }, pairs(options).map(([each, label], n) =>
    h("div", { class: "row" }, buttons[n], h("label", { for: `${id}-${each}` }, label))));
  const chosen = () => buttons.find((button) => button.checked);
  return { node, isGroup: true, read: () => chosen()?.value ?? "", focus: () => (chosen() ?? buttons[0]).focus() };
}

function checkbox({ id, about, value = false, changed }) {
  const node = h("input", { id, type: "checkbox", checked: value, onchange: changed, ...about });
  return { node, read: () => node.checked };
}

/** An end: never, after a while, or at a time in UTC. */
function ends({ id, about, value = "", changed }) {
  const choice = h("select", { id, onchange: turn, ...about }, ENDS.map(([each, label]) => h("option", { value: each }, label)));
  const at = h("input", { type: "datetime-local", "aria-label": "When, in UTC", oninput: changed, ...about });
  const zoned = h("span", { class: "row", hidden: true }, at, "UTC");
  choice.value = value;

  function turn() {
    zoned.hidden = choice.value !== "at";
    changed();
  }

  function read() {
    if (choice.value === "") return null;
    const then = choice.value === "at" ? new Date(`${at.value}Z`) : new Date(Date.now() + 1000 * Number(choice.value));
    return Number.isNaN(then.getTime()) ? null : then.toISOString().replace(/\.\d+Z$/, "Z");
  }

  function wrong() {
    if (choice.value !== "at") return null;
    if (read() === null) return "Give a day and a time.";
    return new Date(`${at.value}Z`) > new Date() ? null : "This is over already. Give a time in the future.";
  }

  return { node: h("div", { class: "row" }, choice, zoned), marked: choice, read, wrong, focus: () => choice.focus() };
}
