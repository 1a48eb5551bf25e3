// Which page is shown, by the address; what all pages share: navigation, session, messages.

import * as api from "./api.js";
import { fill, h, say } from "./dom.js";
import { killSwitch } from "./killswitch.js";
import { Live } from "./live.js";
import { signInPage } from "./pages/signin.js";

const PAGES = [
  { at: /^\/$/, name: "Overview", load: () => import("./pages/overview.js") },
  { at: /^\/rules$/, name: "Rules", load: () => import("./pages/rules.js") },
  { at: /^\/rules\/new$/, under: "Rules", load: () => import("./pages/editor.js") },
  { at: /^\/rules\/history$/, under: "Rules", load: () => import("./pages/history.js") },
  { at: /^\/rules\/([^/]+)$/, under: "Rules", load: () => import("./pages/rule.js") },
  { at: /^\/rules\/([^/]+)\/edit$/, under: "Rules", load: () => import("./pages/editor.js") },
  { at: /^\/keys$/, name: "Keys", load: () => import("./pages/keys.js") },
  { at: /^\/live$/, name: "Live", load: () => import("./pages/live.js") },
  { at: /^\/audit$/, name: "Audit", load: () => import("./pages/audit.js") },
  { at: /^\/tokens$/, name: "Tokens", load: () => import("./pages/tokens.js"), role: "admin" },
];
const RANKS = ["viewer", "editor", "admin"];

class App {
  constructor(root) {
    this.root = root;
    this.live = new Live();
    this.session = null;
    this.shown = null;
    this.turn = 0;
    api.onSignedOut(() => this.session && this.signedOut("Your session is over. Sign in again to go on."));
    // A page with something unsaved in it may hold on, and ask first.
    addEventListener("popstate", () => this.shown?.hold?.() || this.show());
    document.addEventListener("click", (event) => this.follow(event));
  }

  /** Whether who is signed in may do what needs a role. */
  may(role) {
    return RANKS.indexOf(this.session?.role) >= RANKS.indexOf(role);
  }

  async start() {
    theme(localStorage.getItem("limen-theme"));
    try {
      this.session = await api.whoAmI();
    } catch (problem) {
      fill(this.root, h("main", { class: "alone" }, h("h1", null, "limen"), h("p", { role: "alert" }, problem.detail),
        h("button", { onclick: () => location.reload() }, "Try again")));
      return;
    }
    if (this.session) this.frame();
    else this.signedOut();
  }

  signedOut(message) {
    this.session = null;
    this.live.close();
    this.leave();
    document.title = "Sign in · limen";
    fill(this.root, signInPage(message, async (token) => {
      this.session = await api.signIn(token);
      this.frame();
    }));
    this.root.querySelector("input").focus();
  }

  frame() {
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.banner = h("p", { class: "banner", role: "status", hidden: true }, "The service does not answer. Trying again …");
    this.messages = h("div", { class: "messages", role: "status", "aria-live": "polite" });
    this.links = PAGES.filter((page) => page.name && (!page.role || this.may(page.role)))
      .map((page) => h("a", { href: page.at.source.replace(/[\^$\\]/g, "") }, page.name));
    const out = h("button", { class: "quiet", onclick: () => this.leaveSession() }, "Sign out");
    const shade = h("button", { class: "quiet", onclick: () => theme(), "aria-label": "Switch between light and dark" }, "◐");
    fill(this.root,
      // The address stays as it is: it holds the state of the page.
      h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); this.main.focus(); } }, "Skip to the content"),
      h("header", null,
        h("a", { class: "brand", href: "/" }, "limen"),
        h("nav", { "aria-label": "Pages" }, this.links),
        h("div", { class: "who" }, killSwitch(this), h("span", { title: `Role: ${this.session.role}` }, this.session.name), shade, out)),
      this.banner, this.main, this.messages);
    this.live.on("state", (state) => { this.banner.hidden = state !== "lost"; });
    this.live.open();
    // The other pages are fetched when the first is there: to go to one takes no time, and no service.
    this.show().then(() => { for (const page of PAGES) page.load().catch(() => {}); });
  }

  async leaveSession() {
    // Requests of the page would be refused after the session has ended.
    this.live.close();
    this.leave();
    try {
      await api.signOut();
    } finally {
      this.signedOut();
    }
  }

  /** Go to another address of ours, `/rules?search=x`; with `replace` without a step to go back to. */
  go(address, { replace = false } = {}) {
    if (replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
    return this.show();
  }

  /** Let the address bar hold the state of a page, without showing the page anew. */
  keep(query) {
    const kept = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
    history.replaceState(null, "", kept.size ? `${location.pathname}?${kept}` : location.pathname);
  }

  follow(event) {
    const link = event.target.closest?.("a[href^='/']");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    if (link.target || link.hasAttribute("download") || /^\/(docs|admin|metrics|ui)\b/.test(link.getAttribute("href"))) return;
    event.preventDefault();
    if (this.session) this.go(link.getAttribute("href"));
  }

  leave() {
    this.turn += 1;
    this.shown?.close?.();
    this.shown = null;
  }

  async show() {
    if (!this.session) return;
    this.leave();
    const turn = this.turn;
    const [page, match] = find(location.pathname);
    for (const link of this.links) {
      const here = link.textContent === (page?.name ?? page?.under);
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    fill(this.main, h("p", { class: "loading", role: "status" }, "Loading …"));
    let made;
    try {
      if (!page) throw new api.Problem(404, "There is no such page.");
      const { show } = await loaded(page);
      made = await show({
        app: this,
        live: this.live,
        name: match[1] === undefined ? null : decoded(match[1]),
        query: new URLSearchParams(location.search),
      });
    } catch (problem) {
      if (turn === this.turn && this.session) this.fail(problem);
      return;
    }
    if (turn !== this.turn) {
      made.close?.();
      return;
    }
    this.shown = made;
    document.title = `${made.title} · limen`;
    fill(this.main, made.node);
    this.main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }

  fail(problem) {
    if (!(problem instanceof api.Problem)) console.error(problem);
    const detail = problem instanceof api.Problem ? problem.detail : "The page has a mistake. The console tells more.";
    document.title = "Not shown · limen";
    fill(this.main, h("section", { class: "empty", role: "alert" }, h("h1", null, "This cannot be shown"), h("p", null, detail),
      h("button", { onclick: () => this.show() }, "Try again")));
  }

  /** Tell of something that was done, or was not: a few seconds, or until it is closed. */
  tell(text, kind = "done") {
    const message = h("div", { class: `message ${kind}` }, h("span", null, text),
      h("button", { class: "quiet", "aria-label": "Close", onclick: () => message.remove() }, "×"));
    this.messages.append(message);
    if (kind === "done") setTimeout(() => message.remove(), 6000);
  }

  /** Do something that changes things; say how it went. Returns what it gave, or undefined. */
  async act(button, work, done) {
    const before = button.textContent;
    button.disabled = true;
    say(button, "…");
    try {
      const given = await work();
      if (done) this.tell(done);
      return given ?? true;
    } catch (problem) {
      if (!(problem instanceof api.Problem)) throw problem;
      this.tell(problem.detail, "failed");
      return undefined;
    } finally {
      button.disabled = false;
      say(button, before);
    }
  }
}

function find(pathname) {
  for (const page of PAGES) {
    const match = page.at.exec(pathname);
    if (match) return [page, match];
  }
  return [null, []];
}

/** The module of a page. When the service is away it cannot be fetched, which is no mistake of the page. */
async function loaded(page) {
  try {
    return await page.load();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new api.Problem(0, "The service does not answer.");
  }
}

/** What a part of an address stands for. Not every text that begins with a % stands for something. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    throw new api.Problem(404, "There is no such page.");
  }
}

/** Use a theme, or, without one, the other. */
function theme(name) {
  const root = document.documentElement;
  if (name === undefined) {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    name = dark ? "light" : "dark";
    localStorage.setItem("limen-theme", name);
  }
  if (name) root.dataset.theme = name;
}

new App(document.getElementById("app")).start();
