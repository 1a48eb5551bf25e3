// The kill switch in the header: how it stands, and one click from turning it.

import { get, Problem, put } from "./api.js";
import { ask } from "./confirm.js";
import { fill, freshId, h, say } from "./dom.js";
import { dayAndTime, plural } from "./format.js";

const LOOK_MS = 5000;
const MOST_SHOWN = 50;
const WHAT = "Rules that it covers refuse nobody. They go on counting and reporting, and all of it takes effect within a second.";

/** Return what the header shows of the kill switch. It looks after itself, and ends when it is taken out of the page. */
export function killSwitch(app) {
  const label = h("span", null, "Kill switch");
  const button = app.may("editor")
    ? h("button", { type: "button", class: "quiet", onclick: turn }, label)
    : h("span", { class: "pill off" }, label);
  const node = h("div", { class: "kill-switch" }, button);
  let state = null, timer = 0;

  function show(next) {
    const told = state !== null && next !== null && (state.on !== next.on || state.all !== next.all);
    state = next ?? state;
    const word = next === null ? "unknown" : wordOf(next);
    node.dataset.state = next === null ? "unknown" : stateOf(next);
    say(label, `Kill switch: ${word}`);
    button.title = next === null ? "The service does not say how it stands." : titleOf(next, app.may("editor"));
    const isOn = (next ?? state)?.on === true;
    if (app.may("editor")) button.className = isOn ? "danger" : "quiet";
    else button.className = isOn ? "pill denied" : "pill off";
    // Nobody may overlook that no limit holds: the whole header is marked, on every page.
    node.classList.toggle("on", isOn);
    return told;
  }

  async function look() {
    try {
      const next = await get("/kill-switch");
      if (!node.isConnected) return;
      // Somebody else turned it: whoever looks at this page must not miss that.
      if (show(next)) app.tell(`${sentenceOf(next)}${next.by ? ` Turned by ${next.by}.` : ""}`, next.on ? "failed" : "done");
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (node.isConnected) show(null);
    }
  }

  async function watch() {
    clearTimeout(timer);
    if (document.visibilityState === "visible") await look();
    clearTimeout(timer);
    if (node.isConnected) timer = setTimeout(watch, LOOK_MS);
    else document.removeEventListener("visibilitychange", watch);
  }

  async function turn() {
    const known = state ?? { on: false, all: false, rules: [] };
    let turned = null;
    await ask({
      title: known.on ? `The kill switch is on for ${known.all ? "all rules" : plural(known.rules.length, "rule")}` : "Turn the kill switch on?",
      text: known.on && known.at ? `${WHAT} It was turned ${dayAndTime(known.at)}${known.by ? ` by ${known.by}` : ""}.` : WHAT,
      fields: [
        { name: "to", label: known.on ? "Turn it" : "For", type: "radio", value: known.on ? "off" : "all", options: [
          ...(known.on ? [["off", "Off: all rules refuse again"]] : []),
          ["all", known.on ? "On for all rules" : "All rules"], ["some", known.on ? "On for chosen rules only" : "Chosen rules only"]] },
        { name: "rules", label: "Rules", required: true, when: ({ to }) => to === "some", make: (field) => chooser(field, known.rules) },
        { name: "comment", label: "Comment", hint: "Why, for the audit. It may stay empty." },
      ],
      action: ({ to, rules }) => (to === "off" ? "Turn off" : to === "all" ? "Turn on for all rules" : `Turn on for ${plural(rules.length, "rule")}`),
      danger: ({ to }) => to !== "off",
      check: async ({ to, rules, comment }) => {
        turned = await put("/kill-switch", { on: to !== "off", rules: to === "some" ? rules : [], comment });
        return null;
      },
    });
    if (turned === null) return;
    show(turned);
    app.tell(`${sentenceOf(turned)}${reachOf(turned)}`, turned.other_hosts === "not reached" || !turned.audited || turned.warning ? "failed" : "done");
  }

  document.addEventListener("visibilitychange", watch);
  // The frame puts it into the page first: what is not there ends itself.
  queueMicrotask(watch);
  return node;
}

const stateOf = (state) => (!state.on ? "off" : state.all ? "all" : "some");
const wordOf = (state) => (!state.on ? "off" : state.all ? "ON for all rules" : `ON for ${plural(state.rules.length, "rule")}`);

function titleOf(state, may) {
  const who = state.at ? ` Turned ${dayAndTime(state.at)}${state.by ? ` by ${state.by}` : ""}.` : "";
  const names = state.on && !state.all ? ` For ${state.rules.slice(0, 10).join(", ")}${state.rules.length > 10 ? ", …" : ""}.` : "";
  return `${state.on ? "Rules that it covers refuse nobody." : "All rules refuse as they say."}${names}${who}${may ? "" : " To turn it takes the role editor."}`;
}

function sentenceOf(state) {
  if (!state.on) return "The kill switch is off: all rules refuse again.";
  return state.all ? "The kill switch is on: no rule refuses anybody." : `The kill switch is on: ${plural(state.rules.length, "rule refuses", "rules refuse")} nobody.`;
}

function reachOf(turned) {
  const hosts = turned.other_hosts === "not reached" ? " Redis does not answer: it is turned on this host alone." : "";
  const audit = turned.audited ? "" : " The database does not answer: it does not stand in the audit.";
  return `${hosts}${audit}${turned.warning ? ` ${turned.warning}` : ""}`;
}

/** A field for rules: a search, and of what fits the first fifty. The names are asked for when it is first seen. */
function chooser({ id, about, changed }, given) {
  const chosen = new Set(given);
  let names = null;
  const search = h("input", { id, type: "search", placeholder: "Search rules", autocomplete: "off", spellcheck: "false",
    oninput: list, onfocus: load, onkeydown: keyed, ...about });
  const box = h("div", { class: "choices scroll", role: "group", "aria-label": "Rules that fit" });
  const told = h("p", { class: "hint", role: "status" });
  const seen = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && load());
  seen.observe(search);

  async function load() {
    seen.disconnect();
    if (names !== null) return;
    names = [...chosen];
    say(told, "Loading …");
    try {
      names = (await get("/rules")).rules.map((rule) => rule.name);
      list();
    } catch (problem) {
      names = null;
      say(told, `${problem.detail ?? "The rules cannot be read."} The switch still works for all rules.`);
    }
  }

  function keyed(event) {
    // Enter in a search takes the one rule that is left, and sends nothing.
    if (event.key !== "Enter") return;
    event.preventDefault();
    const left = fitting();
    if (left.length === 1) {
      chosen.add(left[0]);
      list();
      changed();
    }
  }

  function fitting() {
    const sought = search.value.trim().toLowerCase();
    return (names ?? []).filter((name) => name.toLowerCase().includes(sought));
  }

  function list() {
    const left = fitting().filter((name) => !chosen.has(name));
    const shown = [...chosen, ...left.slice(0, MOST_SHOWN)];
    fill(box, shown.map(line));
    const more = left.length - Math.min(left.length, MOST_SHOWN);
    say(told, names?.length === 0 ? "There are no rules." : `${plural(chosen.size, "rule")} chosen.${more ? ` ${plural(more, "other")} fit: search for them.` : ""}`);
  }

  function line(name) {
    const own = freshId("rule");
    const tick = h("input", { id: own, type: "checkbox", checked: chosen.has(name), onchange: () => {
      if (tick.checked) chosen.add(name);
      else chosen.delete(name);
      say(told, `${plural(chosen.size, "rule")} chosen.`);
      changed();
    } });
    return h("div", { class: "row" }, tick, h("label", { for: own, class: "mono" }, name));
  }

  return { node: h("div", null, search, box, told), marked: search, read: () => [...chosen], focus: () => search.focus() };
}
