// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const small = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
// UTC everywhere, as in the API, the log and the command line: one moment has one name in all of them.
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: "UTC" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });

export const count = (number) => whole.format(number);
export const short = (number) => (Math.abs(number) < 1000 ? small.format(number) : compact.format(number));
export const rate = (number) => `${short(number)}/s`;
export const percent = (share) => `${small.format(100 * share)} %`;

/** A duration in seconds: "480 µs", "12 ms", "3.5 s", "5 min", "2 h", "3 days". */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${small.format(value * 1e6)} µs`;
  if (value < 1) return `${small.format(value * 1e3)} ms`;
  if (value < 90) return `${small.format(value)} s`;
  if (value < 5400) return `${whole.format(value / 60)} min`;
  if (value < 129600) return `${small.format(value / 3600)} h`;
  return `${whole.format(value / 86400)} days`;
}

/** A moment, from seconds since 1970 or from ISO 8601, as a Date. A time without an offset is UTC, as it is in rules. */
export const moment = (at) => new Date(typeof at === "number" ? at * 1000 : withZone(at));
const withZone = (text) => (typeof text === "string" && /\d[T ]\d/.test(text) && !/(Z|[+-]\d\d:?\d\d)$/i.test(text) ? `${text.replace(" ", "T")}Z` : text);

/** "14:05:09", for axes that say elsewhere that they are UTC. */
export const clockTime = (at) => clock.format(moment(at));
export const timeOfDay = (at) => `${clockTime(at)} UTC`;
export const dayAndTime = (at) => `${day.format(moment(at))}, ${timeOfDay(at)}`;

/** How long ago: "now", "12 s ago", "5 min ago". */
export function ago(at) {
  const passed = (Date.now() - moment(at).getTime()) / 1000;
  return passed < 2 ? "now" : `${seconds(Math.floor(passed))} ago`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
