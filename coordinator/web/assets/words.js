// Numbers as people read them, and elements that hold text, never HTML: names come from other people's machines.

export function bytes(count) {
  for (const [limit, unit] of [[1e15, "PB"], [1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (count >= limit) return digits(count / limit) + " " + unit;
  return Math.round(count) + " B";
}

export function rate(bps) {
  for (const [limit, unit] of [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]])
    if (bps >= limit) return digits(bps / limit) + " " + unit;
  return Math.round(bps) + " bit/s";
}

/** "18 of 20 Mbit/s": both in the unit of the second. */
export function rateOf(used, most) {
  for (const [limit, unit] of [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]])
    if (most >= limit) return `${digits(used / limit)} of ${digits(most / limit)} ${unit}`;
  return `${Math.round(used)} of ${Math.round(most)} bit/s`;
}

export function count(value) {
  for (const [limit, unit, from] of [[1e9, " G", 1e9], [1e6, " M", 1e6], [1e3, " k", 1e4]])
    if (value >= from) return digits(value / limit) + unit;
  return value >= 100 ? String(Math.round(value)) : digits(value);
}

export function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.01 ? 3 : 4);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export function seconds(value) {
  if (value < 1e-6) return "0 s";
  if (value < 1) return digits(value * 1000) + " ms";
  if (value < 60) return digits(value) + " s";
  if (value < 3600) return `${Math.floor(value / 60)} min ${String(Math.round(value % 60)).padStart(2, "0")} s`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${String(Math.floor((value % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

/** "1 node", "3 nodes". */
export const some = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

export const percent = (part) => (part * 100).toFixed(part > 0 && part < 0.095 ? 1 : 0) + " %";

export const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** An HTML element: h("p", {class: "x", onclick: f}, "text", child, ...). */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...real(children.flat()));
  return element;
}

/** Replaces what an element holds, only when `key` is not what it was made of last. */
export function put(element, key, make) {
  const text = JSON.stringify(key);
  if (element.dataset.key === text) return;
  element.dataset.key = text;
  element.replaceChildren(...real([make()].flat()));
}

/** Without what stands for nothing. */
const real = (children) => children.filter((child) => child !== null && child !== undefined && child !== false);

/** A bar of a fraction, coloured by how full it is. */
export function meter(part, kind = "", label = "") {
  const inner = h("i", {});
  inner.style.width = Math.min(100, Math.max(0, part * 100)) + "%";
  return h("span", { class: `meter ${kind}`, role: "meter", "aria-label": label, "aria-valuenow": Math.round(part * 100), "aria-valuemin": 0, "aria-valuemax": 100 }, inner);
}

export const heat = (load) => (load === null || load === undefined ? "idle" : load >= 0.8 ? "full" : load >= 0.5 ? "busy" : "calm");
