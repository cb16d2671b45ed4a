// The picture of who does what: stages one after the other, pipelines side by side, links as arrows with what they carry.
import { h, heat, rate, rateOf, s, seconds } from "./words.js";

const CARD = { width: 172, height: 66 };
const HEAD = 22;

/** Draws `state` into `host`; `chosen` is a node's name whose links stand out, `choose(name)` is called on a click. */
export function map(host, state, chosen, choose) {
  host.map = { state, chosen, choose };
  if (!host.observed) {
    host.observed = new ResizeObserver(() => draw(host));
    host.observed.observe(host);
  }
  draw(host);
}

function draw(host) {
  const { state, chosen, choose } = host.map;
  const width = Math.floor(host.clientWidth);
  if (width < 60) return;
  if (!state.nodes.length) {
    host.replaceChildren(h("div", { class: "empty" }, "No node has joined yet."));
    return;
  }
  const places = layout(state, width);
  const svg = s("svg", { width: places.width, height: places.height, viewBox: `0 0 ${places.width} ${places.height}`, class: "map", role: "img", "aria-label": "Nodes, their stages and links" });
  svg.append(s("defs", {}, ["idle", "calm", "busy", "full"].map((kind) =>
    s("marker", { id: "arrow-" + kind, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" },
      s("path", { d: "M0 0L8 4L0 8z", class: "head " + kind })))));
  for (const text of places.titles) svg.append(s("text", { x: text.x, y: text.y, class: "map-title " + text.align }, text.text));
  const drawn = state.links.filter((link) => link.carries && places.at[link.from] && places.at[link.to]);
  for (const link of drawn) svg.append(arrow(link, places, chosen));
  for (const node of state.nodes) if (places.at[node.node]) svg.append(card(node, places.at[node.node], state, chosen, choose));
  host.replaceChildren(h("div", { class: "map-scroll" }, svg));
}

/** Where each card stands. Wide: a column a stage; narrow: a row a stage. */
function layout(state, width) {
  const plan = state.plan, at = {}, titles = [];
  const pipelines = plan?.pipelines ?? [], stages = plan?.columns ?? [];
  const present = new Set(state.nodes.map((node) => node.node));
  const narrow = width < Math.max(620, stages.length * 210);
  const label = narrow ? 0 : 116, gap = narrow ? 58 : 56;
  // As wide as the longest name and device want, where the columns have room.
  const wanted = Math.max(...state.nodes.map((node) => Math.max(7.6 * node.node.length + 60, 6.4 * (node.device ?? "").length + 30)));
  const widest = (width - 2 - label) / Math.max(1, stages.length) - 96;
  let cell = { width: Math.max(CARD.width, Math.min(wanted, widest)), height: CARD.height }, between = 120;
  if (narrow) {
    const beside = Math.max(1, pipelines.length);
    cell = { ...cell, width: Math.max(128, Math.min(190, (width - 26 * (beside - 1)) / beside)) };
  } else if (stages.length > 1) {
    between = Math.max(96, Math.min(300, (width - 2 - label - stages.length * cell.width) / (stages.length - 1)));
  }
  let bottom = pipelines.length ? HEAD : 0, right = 0;
  const across = narrow ? cell.width + 26 : 0;
  pipelines.forEach((names, pipeline) => {
    const share = `${Math.round(plan.shares[pipeline] * 100)} % of a batch`;
    if (narrow) {
      titles.push({ x: pipeline * across, y: 14, text: `pipeline ${pipeline} · ${Math.round(plan.shares[pipeline] * 100)} %`, align: "" });
    } else {
      const y = HEAD + pipeline * (cell.height + gap) + cell.height / 2;
      titles.push({ x: 0, y: y - 2, text: `pipeline ${pipeline}`, align: "" }, { x: 0, y: y + 14, text: share, align: "faint" });
    }
    names.forEach((name, stage) => {
      const x = narrow ? pipeline * across : label + stage * (cell.width + between);
      const y = narrow ? HEAD + stage * (cell.height + gap) : HEAD + pipeline * (cell.height + gap);
      if (present.has(name) && !at[name]) at[name] = { x, y, ...cell };
      right = Math.max(right, x + cell.width);
      bottom = Math.max(bottom, y + cell.height);
    });
  });
  if (!narrow)
    stages.forEach((column, stage) => titles.push({
      x: label + stage * (cell.width + between) + cell.width / 2, y: 13, align: "mid",
      text: `stage${column.stages.length > 1 ? "s" : ""} ${column.stages.join(", ")} · ${layersOf(column.layers)}`,
    }));
  const rest = state.nodes.map((node) => node.node).filter((name) => !at[name]);
  if (rest.length) {
    const start = bottom ? bottom + 40 : HEAD;
    titles.push({ x: 0, y: start - 10, text: pipelines.length ? "spares and newcomers" : "joined", align: "" });
    const beside = Math.max(1, Math.floor((width + 14) / (cell.width + 14)));
    rest.forEach((name, index) => {
      at[name] = { x: (index % beside) * (cell.width + 14), y: start + Math.floor(index / beside) * (cell.height + 14), ...cell };
      right = Math.max(right, at[name].x + cell.width);
      bottom = Math.max(bottom, at[name].y + cell.height);
    });
  }
  return { at, titles, width: Math.max(width, right + 2), height: bottom + 6, narrow, between, gap };
}

function layersOf(spans) {
  const texts = spans.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
  return (texts.length === 1 && !texts[0].includes("–") ? "layer " : "layers ") + texts.join(", ");
}

function card(node, place, state, chosen, choose) {
  const parts = node.parts, use = parts ? parts.compute + parts.codec : null;
  const held = state.bottleneck && state.bottleneck.node === node.node && state.bottleneck.kind !== "link";
  const room = Math.floor((place.width - 26) / 6.4);
  const where = node.stage !== null && node.stage !== undefined && place.width < 150 ? `stage ${node.stage}` : cut(node.device ?? "", room);
  const group = s("g", { class: "node" + (chosen === node.node ? " chosen" : "") + (held ? " held" : "") + (node.attending === false ? " away" : ""), transform: `translate(${place.x} ${place.y})`, tabindex: 0, role: "button", "aria-pressed": chosen === node.node, "aria-label": node.node });
  group.append(
    s("rect", { width: place.width, height: place.height, rx: 9, class: "box" }),
    s("rect", { x: 0, y: 10, width: 4, height: place.height - 20, rx: 2, class: "fill region-" + ((node.region ?? 0) % 6) }),
    s("text", { x: 14, y: 22, class: "name" }, cut(node.node, Math.floor((place.width - (use === null ? 24 : 58)) / 7.6))),
    s("text", { x: 14, y: 39, class: "small" }, where),
  );
  if (use !== null) {
    const wide = place.width - 28;
    group.append(
      s("text", { x: place.width - 12, y: 22, class: "small end" }, `${Math.round(use * 100)} %`),
      s("rect", { x: 14, y: 49, width: wide, height: 5, rx: 2.5, class: "track" }),
      s("rect", { x: 14, y: 49, width: Math.max(2, wide * Math.min(1, use)), height: 5, rx: 2.5, class: "use" }),
    );
  } else {
    group.append(s("text", { x: 14, y: 56, class: "small" }, cut(node.stage === null || node.stage === undefined ? (node.advice?.doing ?? node.role) : node.doing || "", room)));
  }
  group.append(s("title", {}, [node.node, node.device, node.advice?.doing, node.advice?.use, node.advice?.better].filter(Boolean).join("\n")));
  const pick = () => choose(chosen === node.node ? null : node.node);
  group.addEventListener("click", pick);
  group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } });
  return group;
}

/** One direction of a link: an arrow beside the other direction's, and its numbers where there is room. */
function arrow(link, places, chosen) {
  const from = places.at[link.from], to = places.at[link.to];
  const a = middle(from), b = middle(to);
  const level = Math.abs(a.y - b.y) < 1, upright = Math.abs(a.x - b.x) < 1;
  const near = (level && Math.abs(a.x - b.x) <= from.width + (places.narrow ? 27 : places.between + 1)) || (upright && Math.abs(a.y - b.y) <= from.height + places.gap + 1);
  const mine = chosen === link.from || chosen === link.to;
  const kind = heat(link.load);
  if (!near && !mine && !link.bottleneck) return s("g", {});
  const side = level ? { x: 0, y: a.x < b.x ? -6 : 6 } : { x: a.y < b.y ? -6 : 6, y: 0 };
  let path, text;
  if (near) {
    const start = edge(from, a, b, 3), end = edge(to, b, a, 3);
    path = `M${start.x + side.x} ${start.y + side.y}L${end.x + side.x} ${end.y + side.y}`;
    text = { x: (start.x + end.x) / 2 + side.x * (level ? 1 : 1.8), y: (start.y + end.y) / 2 + (level ? (side.y < 0 ? -12 : 20) : 4) };
  } else {
    const bend = upright ? { x: a.x - from.width / 2 - 26, y: (a.y + b.y) / 2 } : { x: (a.x + b.x) / 2 + side.x * 6, y: (a.y + b.y) / 2 + side.y * 6 };
    const start = upright ? { x: from.x, y: a.y } : edge(from, a, b, 3), end = upright ? { x: to.x, y: b.y } : edge(to, b, a, 3);
    path = `M${start.x} ${start.y}Q${bend.x} ${bend.y} ${end.x} ${end.y}`;
    text = null;
  }
  const group = s("g", { class: `link ${kind}` + (link.carries === "updates" ? " updates" : "") + (link.bottleneck ? " held" : "") + (mine ? " mine" : "") });
  group.append(s("path", { d: path, "marker-end": `url(#arrow-${link.bottleneck ? "full" : kind})` }));
  if (text && (!places.narrow || !level))
    group.append(s("text", { x: text.x, y: text.y, class: "flow " + (level ? "mid" : side.x < 0 ? "end" : "") }, label(link, places.narrow ? 0 : level ? places.between : 160)));
  group.append(s("title", {}, `${link.from} → ${link.to}: ${link.carries}\n${flow(link)}` + (link.latency_s ? `\n${seconds(link.latency_s)} one way` : "")));
  return group;
}

/** "18 / 20 Mbit/s" where there is room, else "18 Mbit/s". */
function label(link, room) {
  if (link.used_bps === null || link.used_bps === undefined) return link.bandwidth_bps ? rate(link.bandwidth_bps) : "";
  if (!link.bandwidth_bps) return rate(link.used_bps);
  const both = rateOf(link.used_bps, link.bandwidth_bps).replace(" of ", " / ");
  return both.length * 6 <= room ? both : rate(link.used_bps);
}

export function flow(link) {
  if (link.used_bps === null || link.used_bps === undefined) return link.bandwidth_bps ? `${rate(link.bandwidth_bps)} measured` : "not measured";
  return link.bandwidth_bps ? rateOf(link.used_bps, link.bandwidth_bps) : rate(link.used_bps);
}

const middle = (place) => ({ x: place.x + place.width / 2, y: place.y + place.height / 2 });

/** Where the line from a card's middle to another point leaves the card, and a little further. */
function edge(place, from, to, more) {
  const dx = to.x - from.x, dy = to.y - from.y;
  const reach = Math.min(place.width / 2 / Math.abs(dx || 1e-9), place.height / 2 / Math.abs(dy || 1e-9));
  const length = Math.hypot(dx, dy) || 1;
  return { x: from.x + dx * reach + (dx / length) * more, y: from.y + dy * reach + (dy / length) * more };
}

const cut = (text, room) => (text.length > room ? text.slice(0, Math.max(1, room - 1)) + "…" : text);
