// Tokens, for admins: who is let in, and as what. A secret is on this page once, and nowhere after.

import { get, path, post, remove } from "../api.js";
import { ask, confirmed } from "../confirm.js";
import { fill, freshId, h, say } from "../dom.js";
import { dayAndTime, plural } from "../format.js";

const MOST_ROWS = 200;
const ROLES = [
  ["check", "check: asks for decisions, sees nothing here"],
  ["viewer", "viewer: sees everything, changes nothing"],
  ["editor", "editor: also changes rules and keys, and turns the kill switch"],
  ["admin", "admin: also manages tokens"],
];
const STATES = { active: "allowed", expired: "off", revoked: "off" };

export async function show({ app, query }) {
  if (!app.may("admin")) {
    return { title: "Tokens", node: h("section", { class: "empty" }, h("h1", null, "Tokens"),
      h("p", null, `To manage tokens takes the role admin, and yours is ${app.session.role}. Ask somebody who has it.`)) };
  }
  let tokens = (await get("/tokens")).tokens;
  const id = freshId("search"), endedId = freshId("ended");
  const search = h("input", { id, type: "search", value: query.get("search") ?? "", autocomplete: "off", spellcheck: "false", oninput: turn });
  const ended = h("input", { id: endedId, type: "checkbox", checked: query.get("ended") === "shown", onchange: turn });
  const fresh = h("div", { hidden: true });
  const inside = h("div", { class: "stack" });
  const create = h("button", { class: "main", onclick: grant }, "Create a token");

  function turn() {
    app.keep({ search: search.value.trim(), ended: ended.checked ? "shown" : null });
    list();
  }

  async function look() {
    tokens = (await get("/tokens")).tokens;
    list();
  }

  function list() {
    const sought = search.value.trim().toLowerCase();
    const those = tokens.filter((token) => ended.checked || token.state === "active");
    const fitting = those.filter((token) => `${token.name} ${token.id} ${token.role} ${token.created_by}`.toLowerCase().includes(sought));
    const hidden = tokens.length - those.length;
    if (!tokens.length) {
      return fill(inside, h("section", { class: "empty" }, h("h2", null, "No tokens yet"),
        h("p", null, "Make one for each service that asks for decisions, and one for each person who looks at this page, so that the audit tells who did what.")));
    }
    fill(inside,
      fitting.length ? h("div", { class: "table-box" }, wide(h("table", null, h("caption", null, `${plural(fitting.length, "token")}, the newest first`),
        h("thead", null, h("tr", null, ["Name", "Role", "State", "Created", "Expires", "Id", "Change"].map((word) => h("th", { scope: "col" }, word)))),
        h("tbody", null, fitting.slice(0, MOST_ROWS).map(row))))) : h("p", { class: "hint" }, "No token fits."),
      fitting.length > MOST_ROWS ? h("p", { class: "hint" }, `${plural(fitting.length - MOST_ROWS, "more token")}: search to see them.`) : null,
      hidden ? h("p", { class: "hint" }, `${plural(hidden, "token")} that ended ${hidden === 1 ? "is" : "are"} not shown.`) : null);
  }

  function row(token) {
    const end = h("button", { class: "quiet", "aria-label": `Revoke ${token.name}`, onclick: () => revoke(end, token) }, "Revoke");
    const how = token.state === "revoked" ? `${dayAndTime(token.revoked_at)} by ${token.revoked_by}` : "";
    return h("tr", null,
      h("th", { scope: "row" }, token.name),
      whole(h("td", null, token.role)),
      h("td", null, h("span", { class: `pill ${STATES[token.state]}`, title: how }, token.state)),
      h("td", null, dayAndTime(token.created_at), h("div", { class: "hint" }, `by ${token.created_by}`)),
      h("td", null, token.expires_at ? dayAndTime(token.expires_at) : "never"),
      h("td", { class: "mono" }, token.id),
      h("td", null, token.state === "active" ? end : null));
  }

  async function grant() {
    let made = null;
    await ask({
      title: "Create a token",
      fields: [
        { name: "name", label: "Name", required: true, placeholder: "checkout service", hint: "What it is for, or whose it is: the audit calls its holder so." },
        { name: "role", label: "Role", type: "select", value: "check", options: ROLES },
        { name: "expires_at", label: "Expires", type: "ends", value: "2592000" },
      ],
      action: "Create",
      check: async (values) => {
        made = await post("/tokens", values);
        return null;
      },
    });
    if (!made) return;
    reveal(made);
    await app.act(create, look);
  }

  function reveal(made) {
    const secretId = freshId("secret");
    const secret = h("input", { id: secretId, class: "mono", readonly: true, value: made.secret, autocomplete: "off", spellcheck: "false", onfocus: () => secret.select() });
    const told = h("span", { role: "status" });
    const copy = h("button", { class: "main", onclick: async () => say(told, await copied(secret) ? "Copied." : "It cannot be copied by itself here: it is selected, copy it by hand.") }, "Copy");
    const done = h("button", { onclick: () => {
      // Out of the field too, not only out of sight.
      secret.value = "";
      fill(fresh).hidden = true;
      create.focus();
    } }, "I have it");
    fill(fresh, h("section", { class: "card fresh", "aria-label": `The secret of ${made.name}` }, h("h2", null, `Token for ${made.name}`),
      h("div", { class: "field" }, h("label", { for: secretId }, "Secret"), secret,
        h("p", { class: "hint" }, "Copy it now. It is kept nowhere, and is not shown again: who loses it needs another token.")),
      h("div", { class: "row" }, copy, done, told)));
    fresh.hidden = false;
    secret.focus();
  }

  async function revoke(button, token) {
    const mine = token.name === app.session.name ? " If it is the one that you are signed in with, your session ends too." : "";
    const sure = await confirmed({
      title: `Revoke ${token.name}?`,
      text: `From now on the token ${token.id} (${token.role}) lets nobody in. This cannot be undone; who needs it gets another one.${mine}`,
      action: "Revoke",
      danger: true,
    });
    if (!sure) return;
    if (!(await app.act(button, () => remove(path`/tokens/${token.id}`), `${token.name} is revoked.`))) return;
    await app.act(create, look);
    search.focus();
  }

  list();
  return {
    title: "Tokens",
    node: h("div", { class: "page" }, h("h1", null, "Tokens"),
      h("p", { class: "hint" }, "Who is let in, and as what. What holders do stands in the audit under the name of their token."),
      fresh,
      h("div", { class: "toolbar" },
        h("div", { class: "field" }, h("label", { for: id }, "Search"), search),
        h("div", { class: "field check" }, ended, h("label", { for: endedId }, "Also those that ended")), create),
      inside),
    close: () => fill(fresh),
  };
}

/** Let a table scroll in its box rather than break words, where the window is narrow. */
function wide(table) {
  table.style.minWidth = "760px";
  return table;
}

/** Let a word stay whole. */
function whole(cell) {
  cell.style.whiteSpace = "nowrap";
  return cell;
}

/** Copy what a field holds. Without TLS browsers have only the old way. */
async function copied(field) {
  field.focus();
  field.select();
  try {
    if (!navigator.clipboard) return document.execCommand("copy");
    await navigator.clipboard.writeText(field.value);
    return true;
  } catch {
    return false;
  }
}
