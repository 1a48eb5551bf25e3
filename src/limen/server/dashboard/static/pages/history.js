// Versions of the rules: who saved them and why, what is different between two, and the way back.

import { get, path, post } from "../api.js";
import { ask } from "../confirm.js";
import { fill, h, say } from "../dom.js";
import { ago, dayAndTime, plural } from "../format.js";
import { changesNode, changesText, crumbs, download, exported, whyNot } from "../ruleset.js";

const PAGE = 50;

export async function show({ app, query }) {
  const [held, first] = await Promise.all([get("/rules"), get(`/rules/versions?limit=${PAGE}`)]);
  const why = whyNot(app, held.source);
  let versions = first.versions;
  const state = { from: query.get("from") ?? "", to: query.get("to") ?? "" };
  const ends = new AbortController();

  const body = h("tbody");
  const title = h("h2", { tabindex: "-1" });
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const difference = h("section", { class: "card", hidden: true }, title, result);
  const more = h("button", { type: "button", onclick: older, hidden: versions.length < PAGE }, "Show older versions");

  function draw() {
    fill(body, versions.map((version) => line(version)));
  }

  function line(version) {
    const { version: number } = version;
    const radio = (side, word) => h("input", { type: "radio", name: `compare-${side}`, value: number, checked: String(number) === state[side],
      "aria-label": `Version ${number} ${word}`, onchange: () => choose({ [side]: String(number) }) });
    const [word, kind] = standing(version);
    return h("tr", null,
      h("td", null, radio("from", "as the one before")), h("td", null, radio("to", "as the one after")),
      h("th", { scope: "row", class: "number" }, String(number)),
      h("td", null, word ? h("span", { class: `pill ${kind}` }, word) : null),
      h("td", null, h("time", { datetime: version.created_at, title: dayAndTime(version.created_at) }, ago(version.created_at))),
      h("td", null, version.author),
      h("td", null, h("span", { class: "clip", title: version.comment || null }, version.comment || h("span", { class: "soft" }, "no comment"))),
      h("td", { class: "mono" }, h("span", { title: "Added, changed, removed" }, version.summary)),
      h("td", null, h("div", { class: "row end" },
        h("button", { type: "button", class: "quiet", onclick: () => choose({ from: String(version.parent), to: String(number) }, true) }, "Changes"),
        h("button", { type: "button", class: "quiet", onclick: (event) => save(event.target, number), "aria-label": `Export version ${number}` }, "Export"),
        version.active ? null : actionOf(version))));
  }

  /** An older version comes back as a new one; a newer one, a draft, begins to hold as it is. */
  function actionOf(version) {
    const isDraft = version.version > (held.version ?? 0);
    return h("button", { type: "button", disabled: why !== "", title: why || null, onclick: () => put(version, isDraft) }, isDraft ? "Activate" : "Roll back");
  }

  function standing(version) {
    if (version.active) return ["holds", "allowed"];
    return version.version > (held.version ?? 0) ? ["draft", "degraded"] : ["", ""];
  }

  async function put({ version: number, comment }, isDraft) {
    const diff = await app.act(h("button"), () => get(`/rules/versions/${number}/diff?against=${held.version ?? 0}`, ends.signal));
    if (!diff || ends.signal.aborted) return;
    const what = isDraft
      ? `Version ${number} holds from then on, in every process. Version ${held.version ?? 0} stays in the history.`
      : `The rules of version ${number} are saved as a new version, which holds from then on, in every process. `
        + `Nothing is lost: version ${held.version} stays in the history.`;
    let saved = null;
    const done = await ask({
      title: isDraft ? `Activate version ${number}` : `Roll back to version ${number}`,
      text: h("div", { class: "stack" }, h("p", null, what), h("p", null, `Compared with the rules that hold: ${changesText(diff.changes)}.`), short(diff.changes)),
      fields: [{ name: "comment", label: "Comment", placeholder: "Why the rules change", value: isDraft ? comment : "" }],
      action: isDraft ? "Activate" : "Roll back",
      check: async ({ comment: said }) => {
        saved = isDraft
          ? await post(`/rules/versions/${number}/activate`, { expected: held.version ?? 0, comment: said })
          : await post(`/rules/versions/${number}/rollback`, { base: held.latest, comment: said });
      },
    });
    if (!done || !saved) return;
    app.tell(isDraft ? `Version ${saved.version} holds now.` : `Version ${saved.version} holds now, with the rules of version ${number}.`);
    app.go("/rules/history");
  }

  async function save(button, number) {
    const whole = await app.act(button, () => get(`/rules/versions/${number}`, ends.signal));
    if (whole) download(`rules-version-${number}.yaml`, exported(whole.document, number));
  }

  async function older() {
    await app.act(more, async () => {
      const found = await get(`/rules/versions?limit=${PAGE}&before=${versions.at(-1).version}`, ends.signal);
      versions = [...versions, ...found.versions];
      draw();
      more.hidden = found.versions.length < PAGE;
    });
  }

  /** Compare two versions; the address bar says which. */
  async function choose(chosen, toResult = false) {
    Object.assign(state, chosen);
    app.keep(state);
    for (const side of ["from", "to"]) for (const radio of body.querySelectorAll(`[name=compare-${side}]`)) radio.checked = radio.value === state[side];
    if (state.to === "") return;
    difference.hidden = false;
    say(title, "Comparing …");
    try {
      const against = state.from === "" ? "" : path`?against=${state.from}`;
      const diff = await get(path`/rules/versions/${state.to}/diff` + against, ends.signal);
      if (state.from === "") state.from = String(diff.before);
      if (String(diff.after) !== state.to || String(diff.before) !== state.from) return;
      const which = diff.before ? `From version ${diff.before} to version ${diff.after}` : `Version ${diff.after}, from nothing`;
      say(title, `${which}: ${changesText(diff.changes)}`);
      fill(result, changesNode(diff.changes));
      const radio = body.querySelector(`[name=compare-from][value="${diff.before}"]`);
      if (radio) radio.checked = true;
    } catch (problem) {
      if (problem.name === "AbortError") return;
      say(title, "These two cannot be compared");
      fill(result, h("p", { class: "problem" }, problem.detail ?? "That did not work."));
    }
    if (toResult) {
      title.focus({ preventScroll: true });
      difference.scrollIntoView({ block: "nearest" });
    }
  }

  draw();
  const holds = versions.find((version) => version.active);
  if (state.to === "" && holds) Object.assign(state, { to: String(holds.version), from: String(holds.parent) });
  if (versions.length && state.to !== "") await choose({});

  const node = h("section", null,
    crumbs("History"),
    h("div", { class: "row apart" }, h("h1", null, "History"), h("span", { class: "hint" }, held.version ? `Version ${held.version} holds` : "")),
    versions.length ? [difference, box(body), h("div", { class: "row" }, more)] : empty(held));
  return { title: "History", node, close: () => ends.abort() };
}

function short(changes) {
  if (!changes.length) return null;
  const node = changesNode(changes.slice(0, 30));
  node.style.maxHeight = "14rem";
  node.style.overflow = "auto";
  return h("div", { class: "stack" }, node, changes.length > 30 ? h("p", { class: "hint" }, `and ${plural(changes.length - 30, "change")} more`) : null);
}

function box(body) {
  const heads = [["From", ""], ["To", ""], ["Version", "number"], ["", ""], ["Saved", ""], ["By", ""], ["Comment", ""], ["Changes", ""]];
  const table = h("table", null,
    h("caption", null, "Versions of the rules, the newest first"),
    h("thead", null, h("tr", null, heads.map(([word, kind]) => h("th", { scope: "col", class: kind || null }, word || h("span", { class: "unseen" }, "State"))),
      h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")))),
    body);
  table.style.minWidth = "900px";
  return h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": "Versions" }, table);
}

function empty(held) {
  const text = held.source === "file"
    ? "The rules are in a file, which keeps no versions. Whoever keeps the file, such as git, has its history."
    : "Every save of the rules becomes a version here, with its author, its time and its comment.";
  return h("div", { class: "empty" }, h("h2", null, "There are no versions yet"), h("p", null, text), h("a", { class: "button", href: "/rules" }, "To the rules"));
}
