// The attributes of a request: as the address holds them, as a key is made of them, and in words.

import { get, path, Problem } from "../api.js";

// What the address holds beside attributes; an attribute of such a name is written with a dot before it.
const OWN = ["key", "rule"];

/** Return {facts, key, rule, note, more}: the attributes of a request, or null and why there are none. */
export async function understood(query) {
  const rule = query.get("rule") || null;
  const key = query.get("key");
  if (key === null) {
    const facts = factsOf(query);
    return { facts: Object.keys(facts).length ? facts : null, key: null, rule, ...(await lacking(rule, facts)) };
  }
  const [facts, note] = parsed(key);
  if (!facts) return { facts: null, key, rule, note, more: {} };
  const found = await lacking(rule, facts);
  return { facts: { ...facts, ...found.literal }, key, rule, ...found };
}

function factsOf(query) {
  const facts = {};
  for (const [name, value] of query) {
    if (OWN.includes(name) || name === ".search" || !value) continue;
    facts[name.startsWith(".") ? name.slice(1) : name] = value;
  }
  return facts;
}

export function addressOf(facts, rule) {
  const query = new URLSearchParams(Object.entries(facts).map(([name, value]) =>
    [OWN.includes(name) || name.startsWith(".") ? `.${name}` : name, value]));
  if (rule) query.set("rule", rule);
  const search = new URLSearchParams(location.search).get(".search");
  if (search) query.set(".search", search);
  return located(query);
}

// A slash needs no escape there, and paths are what people read most.
export const located = (query) => (query.size ? `/keys?${String(query).replaceAll("%2F", "/")}` : "/keys");

/** Read a key as it is kept, "user=42|path=/a%7Cb". Returns [facts, null], or [null, why not]. */
export function parsed(key) {
  if (/^h:[0-9a-f]{16}$/.test(key)) return [null, "This service shows keys hashed, and a hash does not tell whose it is. Enter the attributes to look at the key itself."];
  if (key.startsWith("@")) return [null, "This rule counts everybody together, so there is no single key. Enter the attributes of a request to see where it stands."];
  if (/…[0-9a-f]{16}$/.test(key)) return [null, "This key was too long to be kept whole. Enter the attributes to look at the key itself."];
  const facts = {};
  for (const part of key.split("|")) {
    const match = /^([A-Za-z_][A-Za-z0-9_.-]{0,63})=(.+)$/s.exec(part);
    if (!match || match[1] in facts) return [null, "This key does not say which attributes it is made of. Enter them to look at the key itself."];
    facts[match[1]] = match[2].replaceAll("%7C", "|").replaceAll("%25", "%");
  }
  return [facts, null];
}

/** Say what a rule asks for beside the key: what can only be one text is filled in, the rest is hinted at. */
async function lacking(rule, facts) {
  const found = { literal: {}, more: {}, note: null };
  if (!rule) return found;
  let match, tiers;
  try {
    ({ match, document: { tiers } } = await get(path`/rules/${rule}`));
  } catch (problem) {
    if (!(problem instanceof Problem) || problem.status !== 404) throw problem;
    return { ...found, isGone: true, note: `There is no rule ${rule} any more. This is what other rules say.` };
  }
  for (const [name, wanted] of Object.entries(match)) {
    if (name in facts) continue;
    if (typeof wanted === "string" && !/[*\\]/.test(wanted) && name !== "ip") found.literal[name] = wanted;
    else if (wanted?.present !== false) found.more[name] = typeof wanted === "string" ? wanted : JSON.stringify(wanted);
  }
  // Which limits hold depends on it, and a key does not say it.
  if (tiers?.by && !(tiers.by in facts) && !(tiers.by in found.literal)) found.more[tiers.by] ??= Object.keys(tiers.limits ?? {})[0] ?? "";
  return found;
}

export const told = (facts) => Object.entries(facts).map(([name, value]) => `${name}=${value}`).join(", ");
