// Asks the admin API, and nothing else. Every failure is a Problem with a sentence for people.

/** Why something was not done: `status` (0 when nobody answered), and `detail`, a sentence. */
export class Problem extends Error {
  constructor(status, detail, body) {
    super(detail);
    this.status = status;
    this.detail = detail;
    this.body = body ?? {};
  }
}

const listeners = new Set();

/** Have a function called when the session turns out to be over. */
export function onSignedOut(listener) {
  listeners.add(listener);
}

async function ask(method, path, body, signal) {
  const options = { method, signal, headers: { accept: "application/json" }, credentials: "same-origin" };
  if (method !== "GET") options.headers["x-limen-request"] = "1";
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response, said;
  try {
    response = await fetch(path, options);
    // The connection can also break in the middle of the body.
    said = await read(response);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The service does not answer. What you did was perhaps not done.");
  }
  if (response.ok) return said;
  if (response.status === 401 && path !== "/session") for (const listener of listeners) listener();
  throw new Problem(response.status, sentence(said?.detail ?? `The service answered ${response.status}.`), said);
}

/** The service begins in small letters and ends without a point; on a page it is a sentence among others. */
function sentence(detail) {
  const begun = /^[a-z]+[ ,]/.test(detail) ? detail[0].toUpperCase() + detail.slice(1) : detail;
  return /[.?!…]$/.test(begun) ? begun : `${begun}.`;
}

async function read(response) {
  const text = await response.text();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return { detail: `The service answered ${response.status} with something that is no JSON.` };
  }
}

const admin = (path) => `/admin/v1${path}`;

export const get = (path, signal) => ask("GET", admin(path), undefined, signal);
export const post = (path, body, signal) => ask("POST", admin(path), body, signal);
export const put = (path, body) => ask("PUT", admin(path), body);
export const remove = (path, body) => ask("DELETE", admin(path), body);

/** Return who is signed in, {name, role, expires}; null for nobody. */
export async function whoAmI() {
  try {
    return await ask("GET", "/session");
  } catch (problem) {
    if (problem.status === 401) return null;
    throw problem;
  }
}

export const signIn = (token) => ask("POST", "/session", { token });
export const signOut = () => ask("DELETE", "/session");

/** Return a path with its parts escaped: path`/rules/${name}`. */
export function path(words, ...values) {
  return words.reduce((left, word, n) => left + word + (n < values.length ? encodeURIComponent(values[n]) : ""), "");
}
