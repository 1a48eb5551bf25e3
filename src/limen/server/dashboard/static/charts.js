// Small charts: shapes are SVG that stretches, words are text beside it that does not.

import { fill, h, s, say, set } from "./dom.js";
import { clockTime, rate, short, timeOfDay } from "./format.js";

const WIDTH = 1000;
const HEIGHT = 100;
const TIME_STEPS_S = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];

// As in every slider.
const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };

/** A line without axes: `values` from old to new, and `over`, such as those that were denied, filled in red
on the same scale. `label` says what it shows, and stands for it where it cannot be seen. */
export function sparkline(values, { width = 96, height = 24, label = "", kind = "allowed", over = null } = {}) {
  const area = s("path", { class: "area" });
  const line = s("path", { class: "stroke" });
  const above = s("path", { class: "area" });
  const node = s("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("g", { class: kind }, area, line), s("g", { class: "denied" }, above));
  node.style.width = `${width}px`;
  node.style.height = `${height}px`;

  function update(values, over = null, label = null) {
    const most = Math.max(1e-9, ...values, ...(over ?? []));
    const place = (value, n, all) => [(WIDTH * n) / Math.max(1, all.length - 1), HEIGHT * (1 - value / most)];
    const points = values.map(place);
    set(line, "d", drawn(points));
    set(area, "d", filled(points));
    set(above, "d", filled((over ?? []).map(place)));
    if (label !== null) set(node, "aria-label", label);
  }

  update(values, over);
  return { node, update };
}

// Processes share their slices once a second.
const SHARED_S = 2;

/** The slices of a series that are over and that all processes have shared by the time `to`. The newest ones are
incomplete: drawn as they are, a chart would fall to zero at its end. */
export const completed = (series, to) => series.filter(({ at, seconds }) => at + seconds + SHARED_S <= to);

/** Values over time, with axes. `series` is [{name, kind, points: [[seconds since 1970, value], ...], line}]:
areas that stand on each other, from the first one up; those with `line` (or all, when not `stacked`) are lines.
All have the same times. Where more than `gap` seconds lie between two, nothing is drawn between them.
`from` and `to` are the ends of the axis; without them, it ends where the points do. */
export function timeSeries({ series, height = 180, unit = "", label, stacked = true, gap = Infinity, from, to }) {
  const shapes = s("g");
  const rules = s("g");
  const ticks = h("div", { "aria-hidden": "true" });
  const silent = h("p", { class: "silent", hidden: true }, "Nothing in this time");
  const cursor = h("div", { class: "cursor", hidden: true });
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const plot = h("div", {
    class: "plot", tabindex: "0", role: "slider", "aria-label": `${label}. The arrow keys go from one moment to the next.`,
    onpointermove: (event) => follow(event), onpointerdown: (event) => follow(event), onpointerleave: () => pick(null),
    onkeydown: (event) => step(event), onfocus: () => plot.matches(":focus-visible") && pick(last()), onblur: () => pick(null),
  }, s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, rules, shapes), ticks, silent, cursor, tip);
  const legend = h("ul", { class: "legend", "aria-hidden": "true" });
  const summary = h("p", { class: "unseen" });
  const node = h("figure", { class: "chart", role: "group", "aria-label": label }, legend, plot, summary);
  plot.style.height = `${height}px`;

  let shown = { series: [], times: [], from: 0, to: 1, most: 1 };
  let picked = null;
  let legendOf = "";

  function update(data) {
    const list = data.series ?? series;
    const times = list[0]?.points.map(([at]) => at) ?? [];
    shown = { series: list, times, from: data.from ?? times[0] ?? 0, to: data.to ?? times.at(-1) ?? 1, most: 1 };
    if (shown.to <= shown.from) shown.to = shown.from + 1;
    const tops = drawShapes(list, times);
    silent.hidden = tops > 0;
    tell(list);
    if (picked === null) return;
    // What was pointed at is still meant, though it has moved on.
    const at = times.indexOf(picked);
    pick(at < 0 ? null : at);
  }

  function drawShapes(list, times) {
    const isLine = (one) => one.line || !stacked;
    const bases = times.map(() => 0);
    const layers = list.map((one) => {
      const low = bases.slice();
      const high = one.points.map(([, value], n) => (isLine(one) ? value : (bases[n] += value)));
      return { one, low, high };
    });
    const highest = layers.reduce((most, { high }) => Math.max(most, ...high), 0);
    const marks = niceMarks(highest);
    shown.most = marks.at(-1);
    const runs = split(times, gap);
    // Areas first: a line must not be hidden by one.
    const parts = [];
    for (const { one, low, high } of layers) {
      if (isLine(one)) continue;
      const path = runs.map(([a, b]) => closed(span(times, high, a, b), span(times, low, a, b))).join("");
      parts.push(s("path", { class: `area ${one.kind}`, d: path }));
    }
    for (const { one, high } of layers) {
      if (!isLine(one)) continue;
      const path = runs.flatMap(([a, b]) => above(high, a, b)).map(([a, b]) => drawn(span(times, high, a, b))).join("");
      parts.push(s("path", { class: `stroke ${one.kind}`, d: path }));
    }
    fill(shapes, parts);
    drawAxes(marks);
    return highest;
  }

  function drawAxes(marks) {
    fill(rules, marks.map((mark) => s("path", { class: "rule", d: `M0 ${y(mark)}H${WIDTH}` })));
    const words = marks.map((mark) => {
      const word = h("span", { class: "tick y" }, mark === 0 ? "0" : told(mark, unit));
      word.style.top = `${y(mark)}%`;
      return word;
    });
    const [times, step] = niceTimes(shown.from, shown.to);
    for (const at of times) {
      const left = (100 * x(at)) / WIDTH;
      // The zone stands there.
      if (left < 5) continue;
      const long = shown.to - shown.from < 180;
      // Of long ones only every second has room on a phone; always the same, though they move.
      const word = h("span", { class: `tick x${long && Math.round(at / step) % 2 ? " second" : ""}` },
        long ? clockTime(at) : clockTime(at).slice(0, 5));
      word.style.left = `${left}%`;
      words.push(word);
    }
    words.push(h("span", { class: "tick zone" }, "UTC"));
    fill(ticks, words);
  }

  const x = (at) => (WIDTH * (at - shown.from)) / (shown.to - shown.from);
  const y = (value) => HEIGHT * (1 - value / shown.most);
  const span = (times, values, a, b) => times.slice(a, b).map((at, n) => [x(at), y(values[a + n])]);
  const last = () => (shown.times.length ? shown.times.length - 1 : null);

  function tell(list) {
    const names = list.map((one) => `${one.kind} ${one.name} ${one.line}`).join("|");
    if (names !== legendOf) {
      legendOf = names;
      fill(legend, list.map((one) => h("li", { class: `key ${one.kind}${one.line || !stacked ? " line" : ""}` }, one.name)));
    }
    say(summary, list.map(({ name, points }) => {
      if (!points.length) return `${name}: nothing.`;
      const values = points.map(([, value]) => value);
      return `${name}: ${told(values.at(-1), unit)} at the end, ${told(Math.max(...values), unit)} at most.`;
    }).join(" "));
    set(plot, "aria-valuemin", 0);
    set(plot, "aria-valuemax", Math.max(0, shown.times.length - 1));
    if (picked === null) {
      set(plot, "aria-valuenow", last() ?? 0);
      set(plot, "aria-valuetext", shown.times.length ? sentence(last()) : "Nothing in this time");
    }
  }

  function sentence(n) {
    return `${timeOfDay(shown.times[n])}: ${shown.series.map((one) => `${one.name} ${told(one.points[n][1], unit)}`).join(", ")}`;
  }

  function follow(event) {
    const { left, width } = plot.getBoundingClientRect();
    const at = shown.from + ((event.clientX - left) / width) * (shown.to - shown.from);
    pick(nearest(shown.times, at));
  }

  function step(event) {
    if (event.key === "Escape") return pick(null);
    const end = last();
    if (end === null) return undefined;
    const here = picked === null ? end : shown.times.indexOf(picked);
    if (!Object.hasOwn(STEPS, event.key)) return undefined;
    event.preventDefault();
    return pick(Math.max(0, Math.min(end, here + STEPS[event.key])));
  }

  /** Point at the moment of this number, or at none. */
  function pick(n) {
    cursor.hidden = tip.hidden = n === null;
    picked = n === null ? null : shown.times[n];
    if (n === null) return;
    const left = (100 * x(picked)) / WIDTH;
    cursor.style.left = `${left}%`;
    tip.style.left = left <= 50 ? `calc(${left}% + 10px)` : "auto";
    tip.style.right = left > 50 ? `calc(${100 - left}% + 10px)` : "auto";
    fill(tip, h("b", null, timeOfDay(picked)), shown.series.map((one) =>
      h("div", null, h("span", { class: `key ${one.kind}` }, one.name), h("span", null, told(one.points[n][1], unit)))));
    set(plot, "aria-valuenow", n);
    set(plot, "aria-valuetext", sentence(n));
  }

  update({ series, from, to });
  return { node, update };
}

/** Bars that lie, one below the other. `items` is [{label, value, kind, href, title}]; the longest is the full width,
or `most`, if that is given. */
export function bars({ items, unit = "", label, most = null }) {
  const node = h("ul", { class: "bars", "aria-label": label });

  function update(items) {
    const full = most ?? Math.max(1e-9, ...items.map(({ value }) => value));
    fill(node, items.map((item) => {
      const width = Math.max(0, Math.min(100, (100 * item.value) / full));
      return h("li", { title: item.title },
        item.href ? h("a", { class: "label", href: item.href }, item.label) : h("span", { class: "label" }, item.label),
        s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true", class: item.kind ?? "allowed" },
          s("rect", { width, height: 10 })),
        h("span", { class: "number" }, told(item.value, unit)));
    }));
  }

  update(items);
  return { node, update };
}

/** A value with its unit: a word, or a function that makes the whole of it. */
function told(value, unit) {
  if (typeof unit === "function") return unit(value);
  if (unit === "/s") return rate(value);
  return unit ? `${short(value)} ${unit}` : short(value);
}

const drawn = (points) => points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(2)}`).join("");
const filled = (points) => (points.length ? `${drawn(points)}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z` : "");
const closed = (high, low) => `${drawn([...high, ...low.reverse()])}Z`;

/** Parts of a list of times without a hole in them, as [first, behind the last]. */
function split(times, gap) {
  const runs = [];
  let first = 0;
  for (let n = 1; n <= times.length; n += 1) {
    if (n < times.length && times[n] - times[n - 1] <= gap) continue;
    if (n > first) runs.push([first, n]);
    first = n;
  }
  return runs;
}

/** Parts of a run in which something happens: a line along the axis would look as if something did. */
function above(values, first, end) {
  const runs = [];
  for (let n = first; n < end; n += 1) {
    if (!(values[n] > 0)) continue;
    const from = Math.max(first, n - 1);
    while (n < end && values[n] > 0) n += 1;
    runs.push([from, Math.min(end, n + 1)]);
  }
  return runs;
}

/** Marks from 0 to above a value, in steps that people count in. */
function niceMarks(highest) {
  if (!(highest > 0)) return [0, 1];
  const rough = highest / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999);
  const marks = [0];
  while (marks.at(-1) < highest) marks.push(Number((marks.length * step).toPrecision(12)));
  return marks;
}

/** Moments for an axis, five or so, at full minutes or the like; and the seconds between them. */
function niceTimes(from, to) {
  const step = TIME_STEPS_S.find((each) => (to - from) / each <= 6) ?? 86400;
  const times = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) times.push(at);
  return [times, step];
}

/** The number of the time that is nearest to a moment; null without any. */
function nearest(times, at) {
  let best = null;
  for (let n = 0; n < times.length; n += 1) {
    if (best === null || Math.abs(times[n] - at) < Math.abs(times[best] - at)) best = n;
  }
  return best;
}
