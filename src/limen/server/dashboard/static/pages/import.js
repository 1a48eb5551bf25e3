// A whole set of rules from a text: checked, held against the rules that hold, and only then saved.

import { get, post, Problem, put } from "../api.js";
import { fill, freshId, h, say } from "../dom.js";
import { plural } from "../format.js";
import { changesBetween, changesNode, changesText, rulesOf } from "../ruleset.js";
import { findingsNode } from "./findings.js";

const MAX_BYTES = 15 * 2 ** 20;

/** Return the panel; `close` takes it away. */
export function importPanel({ app, close }) {
  const fileId = freshId("file"), textId = freshId("text"), commentId = freshId("comment");
  const file = h("input", { id: fileId, type: "file", accept: ".yaml,.yml,.json,application/yaml,application/json", onchange: take });
  const text = h("textarea", { id: textId, class: "mono", rows: 10, spellcheck: "false", placeholder: "rules:\n  - name: …", oninput: () => forget() });
  const told = h("p", { class: "problem", role: "alert" });
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const check = h("button", { type: "button", class: "main", onclick: () => app.act(check, compare) }, "Check and compare");

  async function take() {
    forget();
    const [chosen] = file.files;
    if (!chosen) return;
    if (chosen.size > MAX_BYTES) {
      say(told, "This file is larger than 15 MiB. Use the command line: limen rules apply FILE.");
      return;
    }
    text.value = await chosen.text();
    await app.act(check, compare);
  }

  function forget() {
    say(told, "");
    fill(result);
  }

  const isJson = () => /^\s*\{\s*"/.test(text.value);

  /** Say what is wrong with the text, or what it would change. */
  async function compare() {
    forget();
    if (!text.value.trim()) {
      say(told, "Choose a file, or paste the rules.");
      return;
    }
    const said = await post("/rules/validate", { text: text.value, json: isJson(), want: "document" });
    if (!said.valid) {
      say(told, `This cannot be saved: ${plural(said.problems.length, "problem")}.`);
      fill(result, findingsNode(said.problems, [], (line) => goTo(text, line)));
      return;
    }
    offer(said.document, await get("/rules"), said.advice);
  }

  function offer(document, held, advice) {
    const changes = changesBetween(held.document, document);
    if (!changes.length) {
      fill(result, h("p", null, "These are the rules that hold already. There is nothing to save."));
      return;
    }
    const comment = h("input", { id: commentId, maxlength: 2000, placeholder: "Why the rules change", autocomplete: "off" });
    const save = h("button", { type: "button", class: "main", onclick: () => store(save, true) }, "Save and let them hold");
    const draft = h("button", { type: "button", onclick: () => store(draft, false) }, "Save as a draft");
    const gone = changes.filter(({ kind, path, before }) => kind === "removed" && path.startsWith("rules.") && before?.name !== undefined);

    async function store(button, activate) {
      const saved = await app.act(button, async () => {
        try {
          return await put("/rules", { document, base: held.latest, comment: comment.value, activate });
        } catch (problem) {
          if (!(problem instanceof Problem) || problem.status !== 409) throw problem;
          const now = await get("/rules");
          offer(document, now, advice);
          throw new Problem(409, "Somebody else saved the rules meanwhile. What you see now is the difference from theirs: look at it, and save again.");
        }
      });
      if (!saved) return;
      app.tell(activate ? `Version ${saved.version} holds now.` : `Version ${saved.version} is saved as a draft.`);
      app.go(activate ? "/rules" : `/rules/history?to=${saved.version}`);
    }

    fill(result,
      h("p", null, `${plural(rulesOf(document).length, "rule")} in this text. Compared with the rules that hold: ${changesText(changes)}.`),
      gone.length ? h("p", { class: "problem" }, `${plural(gone.length, "rule")} that hold${gone.length === 1 ? "s" : ""} now would be gone.`) : null,
      findingsNode([], advice, (line) => goTo(text, line)),
      changesNode(changes),
      h("div", { class: "field" }, h("label", { for: commentId }, "Comment"), comment),
      h("div", { class: "row" }, save, draft));
  }

  return h("section", { class: "card", "aria-label": "Import rules" },
    h("div", { class: "row apart" }, h("h2", null, "Import rules"), h("button", { type: "button", class: "quiet", onclick: close }, "Close")),
    h("p", { class: "hint" }, "A whole set, as YAML or JSON. It takes the place of all rules that hold; nothing is saved before you have seen the difference."),
    h("div", { class: "field" }, h("label", { for: fileId }, "File"), file),
    h("div", { class: "field" }, h("label", { for: textId }, "Or its text"), text),
    told, h("div", { class: "row" }, check), result);
}

/** Put the cursor at the beginning of a line of a text. */
export function goTo(text, line) {
  const lines = text.value.split("\n");
  const from = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  text.focus();
  text.setSelectionRange(from, from + (lines[line - 1]?.length ?? 0));
  const height = text.scrollHeight / Math.max(1, lines.length);
  text.scrollTop = Math.max(0, (line - 4) * height);
}
