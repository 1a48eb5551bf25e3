// The door: a token for a session.

import { freshId, h, say } from "../dom.js";

export function signInPage(message, enter) {
  const id = freshId("token");
  const field = h("input", { id, type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
  const told = h("p", { class: "problem", role: "alert" }, message ?? "");
  const button = h("button", { class: "main" }, "Sign in");

  async function submit(event) {
    event.preventDefault();
    say(told, "");
    button.disabled = true;
    try {
      await enter(field.value.trim());
    } catch (problem) {
      say(told, problem.detail ?? "That did not work.");
      field.select();
    } finally {
      button.disabled = false;
    }
  }

  return h("main", { class: "alone", id: "main" },
    h("form", { class: "card", onsubmit: submit },
      h("h1", null, "limen"),
      h("label", { for: id }, "Token"), field,
      h("p", { class: "hint" }, "The admin token is in the file admin-token of the data folder (.limen), unless auth.admin_token sets one. Create others with ",
        h("code", null, "limen token create --role viewer --name you"), "."),
      told, button));
}
