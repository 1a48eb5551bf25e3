// What happens, as it happens: one stream of events for all pages, opened anew when it breaks.

import { get } from "./api.js";

const WAITS_S = [1, 2, 4, 8];

/** A stream of `/admin/v1/live`. `on(name, listener)` returns a function that ends the listening.

Names: "stats", "decision", "alert", "hello", and "state" for "open" or "lost". */
export class Live {
  constructor() {
    this.state = "connecting";
    this.stats = null;
    this.history = [];
    this.listeners = new Map();
    this.failures = 0;
  }

  on(name, listener) {
    const known = this.listeners.get(name) ?? this.listeners.set(name, new Set()).get(name);
    known.add(listener);
    return () => known.delete(listener);
  }

  tell(name, value) {
    for (const listener of this.listeners.get(name) ?? []) listener(value);
  }

  open() {
    this.close();
    this.source = new EventSource("/admin/v1/live");
    for (const name of ["hello", "stats", "decision", "alert"]) {
      this.source.addEventListener(name, (event) => this.hear(name, JSON.parse(event.data)));
    }
    this.source.onerror = () => this.lose();
  }

  hear(name, value) {
    this.failures = 0;
    this.turn("open");
    if (name === "stats") {
      this.stats = value;
      this.history.push(value);
      // Five minutes, and no more: the page may be open for days.
      if (this.history.length > 300) this.history.shift();
    }
    this.tell(name, value);
  }

  async lose() {
    this.close();
    // Perhaps nobody is there; perhaps we are not let in any more, which a stream cannot tell.
    if (await isOver()) return;
    this.turn("lost");
    const wait = WAITS_S[Math.min(this.failures, WAITS_S.length - 1)];
    this.failures += 1;
    this.timer = setTimeout(() => this.open(), 1000 * wait);
  }

  turn(state) {
    if (this.state === state) return;
    this.state = state;
    this.tell("state", state);
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }
}

/** Return whether the session is over; whoever listens for that is told by the question itself. */
async function isOver() {
  try {
    await get("/kill-switch");
    return false;
  } catch (problem) {
    return problem.status === 401;
  }
}
