// Line and area charts in SVG, drawn for the width that they get; a pointer or a finger shows the values of a step.
import { digits, h, s } from "./words.js";

const LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 22, HEIGHT = 190;

/**
 * Draws into `host`. series: [{name, color, points: [[x, y], ...], dots, area}], all against the same axes.
 * options: {format, log, stacked, empty, from, steady}: `from` is where the y axis has to begin, if it has to; with
 * `steady` the first step, which is like no other, has no say in how high it goes.
 */
export function chart(host, series, options = {}) {
  host.chart = { series, options };
  if (!host.observed) {
    host.observed = new ResizeObserver(() => draw(host));
    host.observed.observe(host);
  }
  draw(host);
}

function draw(host) {
  const { series, options } = host.chart;
  const width = Math.floor(host.clientWidth);
  if (width < 60) return;
  const shown = (options.stacked ? stack(series) : series).map((one) => ({ ...one, points: thinned(one.points, width) }));
  const all = shown.flatMap((one) => one.points).filter(([, y]) => y !== null && (!options.log || y > 0));
  const legend = h("div", { class: "legend" }, series.filter((one) => one.points.length).map((one) => h("span", {}, swatch(one), one.name)));
  if (!all.length) {
    host.replaceChildren(h("div", { class: "empty chart-empty" }, options.empty ?? "nothing yet"));
    return;
  }
  const xs = all.map(([x]) => x), first = Math.min(...xs);
  const ys = usual(all.filter(([x]) => !options.steady || x > first || all.length < 4 * shown.length).map(([, y]) => y));
  const x = scale(Math.min(...xs), Math.max(...xs), LEFT, width - RIGHT, false);
  const [low, high] = room(Math.min(...ys, options.from ?? Infinity), Math.max(...ys), options.log);
  const height = scale(low, high, HEIGHT - BOTTOM, TOP, options.log);
  const y = (value) => Math.max(TOP - 4, Math.min(HEIGHT - BOTTOM, height(value)));  // outliers leave at the edge
  const svg = s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, class: "chart", role: "img", "aria-label": series.map((one) => one.name).join(", ") });
  for (const tick of options.log ? decades(low, high) : ticks(low, high, 4)) {
    svg.append(s("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }));
    svg.append(s("text", { x: LEFT - 6, y: y(tick) + 4, class: "tick end" }, (options.format ?? digits)(tick)));
  }
  for (const tick of ticks(x.from, x.to, Math.max(3, Math.floor(width / 80))).filter(Number.isInteger))
    svg.append(s("text", { x: x(tick), y: HEIGHT - 6, class: "tick mid" }, tick));
  for (const one of shown) {
    if (options.stacked) svg.append(s("path", { d: area(one, x, y), class: "area " + one.color }));
    else svg.append(s("path", { d: line(one.points, x, y, options.log), class: "line " + one.color + (one.dashed ? " dashed" : "") }));
    if (one.dots || one.points.length === 1)
      for (const [px, py] of one.points) if (py !== null) svg.append(s("circle", { cx: x(px), cy: y(py), r: 3, class: "dot " + one.color }));
  }
  const tip = h("div", { class: "tip", hidden: true });
  const cross = s("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cross", visibility: "hidden" });
  svg.append(cross);
  const show = () => point(host.pointer, { x, width, series, options, tip, cross });
  svg.addEventListener("pointermove", (event) => { host.pointer = event.clientX - svg.getBoundingClientRect().left; show(); });
  svg.addEventListener("pointerleave", () => { host.pointer = null; tip.hidden = true; cross.setAttribute("visibility", "hidden"); });
  host.replaceChildren(svg, tip, legend);
  if (host.pointer) show();  // the curve went on under a pointer that rests
}

function point(pixel, { x, width, series, options, tip, cross }) {
  const at = x.back(pixel);
  const rows = series.map((one) => [one, nearest(one.points, at)]).filter(([, found]) => found && found[1] !== null);
  if (!rows.length) return;
  const step = rows[0][1][0];
  cross.setAttribute("x1", x(step));
  cross.setAttribute("x2", x(step));
  cross.setAttribute("visibility", "visible");
  tip.replaceChildren(h("b", {}, `step ${step}`), ...rows.map(([one, [, value]]) => h("div", {}, swatch(one), `${one.name} `, h("b", {}, (options.format ?? digits)(value)))));
  tip.hidden = false;
  const left = x(step) + 12;
  tip.style.left = Math.max(0, left + tip.offsetWidth > width ? x(step) - tip.offsetWidth - 12 : left) + "px";
}

function swatch(one) {
  return s("svg", { width: 12, height: 12, viewBox: "0 0 12 12", class: "swatch" }, s("rect", { width: 12, height: 12, rx: 3, class: "fill " + one.color }));
}

function nearest(points, at) {
  let best = null;
  for (const one of points) if (best === null || Math.abs(one[0] - at) < Math.abs(best[0] - at)) best = one;
  return best;
}

/** Values without the few that stand far outside the others: the axis is for the others. */
function usual(values) {
  if (values.length < 20) return values;
  const sorted = values.toSorted((a, b) => a - b), at = (part) => sorted[Math.round(part * (sorted.length - 1))];
  const room = at(0.98) - at(0.02) || Infinity;
  return values.filter((value) => value >= at(0.02) - room / 2 && value <= at(0.98) + room / 2);
}

/** The median of each point and the eight before it. */
export function smoothed(points) {
  return points.map(([x], at) => {
    const near = points.slice(Math.max(0, at - 8), at + 1).map(([, y]) => y).filter((y) => y !== null).sort((a, b) => a - b);
    return [x, near.length ? near[near.length >> 1] : null];
  });
}

/** At most two points a pixel: every so many-th, and always the last. */
function thinned(points, width) {
  const every = Math.ceil(points.length / (2 * width));
  return every < 2 ? points : points.filter((_, at) => at % every === 0 || at === points.length - 1);
}

function stack(series) {
  let below = series[0]?.points.map(([x]) => [x, 0]) ?? [];
  return series.map((one) => {
    const floor = below;
    below = one.points.map(([x, y], at) => [x, floor[at][1] + y]);
    return { ...one, points: below, floor };
  }).map((one) => ({ ...one, floor: undefined, under: one.floor }));
}

function area(one, x, y) {
  const kept = new Set(one.points.map(([px]) => px));
  const under = one.under.filter(([px]) => kept.has(px));
  const out = one.points.map(([px, py]) => `${x(px).toFixed(1)} ${y(py).toFixed(1)}`);
  const back = under.map(([px, py]) => `${x(px).toFixed(1)} ${y(py).toFixed(1)}`).reverse();
  return `M${out.join("L")}L${back.join("L")}Z`;
}

function line(points, x, y, log) {
  let path = "", open = false;
  for (const [px, py] of points) {
    if (py === null || (log && py <= 0)) { open = false; continue; }
    path += `${open ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
    open = true;
  }
  return path;
}

function scale(from, to, start, end, log) {
  const f = log ? Math.log10 : (value) => value;
  const span = f(to) - f(from) || 1;
  const map = (value) => start + ((f(value) - f(from)) / span) * (end - start);
  map.back = (pixel) => f(from) + ((pixel - start) / (end - start)) * span;
  map.from = from;
  map.to = to;
  return map;
}

function room(low, high, log) {
  if (log) return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.001))];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const pad = (high - low) * 0.06;
  return [low === 0 ? 0 : Math.max(low - pad, low >= 0 ? 0 : -Infinity), high + pad];
}

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}

function decades(low, high) {
  const found = [];
  for (let power = Math.round(Math.log10(low)); power <= Math.round(Math.log10(high)); power++) found.push(10 ** power);
  return found.length > 6 ? found.filter((_, at) => at % 2 === 0) : found;
}
