// Links to the page of a rule and of a key, for those that have one.

import { path } from "../api.js";
import { h } from "../dom.js";

// Limits that callers bring along, and rules beyond those that are told one by one, have no page.
const UNNAMED = ["(own limits)", "(others)"];
export const ruleLink = (name) => (UNNAMED.includes(name) ? h("span", null, name) : h("a", { href: path`/rules/${name}` }, name));
// The key of a limit that a caller brought along is under no rule, and so on no page.
export const keyLink = (key, rule) => (UNNAMED.includes(rule) ? h("span", { class: "mono" }, key)
  : h("a", { href: `/keys?${new URLSearchParams(rule ? { key, rule } : { key })}`, class: "mono" }, key));
