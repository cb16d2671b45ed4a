// The page: logs in, listens to the coordinator's events and draws what they say. Nothing is decided here.
import { chart, smoothed } from "./charts.js";
import { flow, map } from "./map.js";
import { bytes, clock, count, digits, h, heat, meter, percent, put, seconds, some } from "./words.js";

const $ = (id) => document.getElementById(id);
const PARTS = ["compute", "codec", "wire", "waiting", "other"];
const PART_WORDS = {
  compute: "in the model and the optimiser", codec: "encoding and decoding",
  wire: "idle, with a message on its way", waiting: "idle, for the computing of others", other: "everything else",
};
const COMMANDS = {
  pause: ["Pause", "Pause the run?", "Everybody keeps what it has and waits. Nothing is lost."],
  resume: ["Resume", "Go on training?", "Everybody who is here trains again."],
  "pause node": ["Pause", "Pause {node}?", "It stays as a spare from the edge of its next step on, until you resume it."],
  "resume node": ["Resume", "Let {node} take part again?", "It gets a place in the next view, if the plan wants it."],
  drain: ["Drain", "Let {node} leave?", "It hands over and goes; the others take over its share. It has no place until you resume it."],
  evict: ["Evict", "Put {node} out?", "At once. Its key and its name are refused from now on, until you readmit it."],
  readmit: ["Readmit", "Let {node} join again?", "Its key and its name are not refused any more. It joins when its owner says so."],
};

let me = null, state = null, chosen = null, stream = null, curves = { edition: -1, points: [], evals: [] };

// ---- login ------------------------------------------------------------------------------------

async function begin() {
  const token = decodeURIComponent(location.hash.slice(1));
  if (token) {
    history.replaceState(null, "", location.pathname);
    await login(token);
  } else {
    const who = await (await fetch("me")).json();
    if (who.role) enter(who);
    else showLogin();
  }
}

async function login(token) {
  const answer = await fetch("login", { method: "POST", body: JSON.stringify({ token }) });
  const said = await answer.json();
  if (answer.ok) return enter(said);
  showLogin();
  $("login-error").textContent = said.error;
}

function showLogin() {
  $("loading").hidden = true;
  $("login").hidden = false;
}

function enter(who) {
  me = who;
  $("login").hidden = true;
  $("loading").hidden = false;
  $("join").hidden = me.role !== "operator";
  listen();
}

// ---- events -----------------------------------------------------------------------------------

function listen() {
  stream = new EventSource("events");
  stream.addEventListener("state", (event) => { $("away").hidden = true; state = JSON.parse(event.data); show(); });
  stream.addEventListener("curves", (event) => { take(JSON.parse(event.data)); });
  stream.addEventListener("end", () => { stream.close(); away("The coordinator has ended. What you see is the last it said."); });
  stream.onerror = async () => {
    if (stream.readyState === EventSource.CLOSED) return lost();
    away("No answer from the coordinator; trying again.");
  };
}

/** The browser gave up: either the login is over or nobody is there. */
async function lost() {
  try {
    const who = await (await fetch("me")).json();
    return who.role ? listen() : location.reload();
  } catch { /* nobody is there */ }
  away("No answer from the coordinator; trying again.");
  setTimeout(lost, 3000);
}

function away(text) {
  $("away").textContent = text;
  $("away").hidden = false;
}

function take(news) {
  if (news.edition !== curves.edition) curves = { edition: news.edition, points: [], evals: [] };
  curves.points.splice(news.points, Infinity, ...news.point_rows);
  curves.evals.splice(news.evals, Infinity, ...news.eval_rows);
}

// ---- drawing ----------------------------------------------------------------------------------

function show() {
  $("loading").hidden = true;
  $("page").hidden = false;
  const run = state.run;
  document.title = `${run.step ? `${run.step}${run.steps ? "/" + run.steps : ""} · ` : ""}${run.name}`;
  $("name").textContent = run.name;
  $("phase").textContent = run.phase.replace("_start", "");
  $("phase").className = "pill " + run.phase;
  const done = run.steps ? run.step / run.steps : 0;
  $("progress-bar").style.width = 100 * Math.min(1, done) + "%";
  $("progress").setAttribute("aria-valuenow", Math.round(100 * done));
  put($("why"), [run.why, run.phase], () => h("span", {}, run.why));
  put($("tiles"), [run, state.bottleneck, state.nodes.some((node) => node.parts)], tiles);
  drawMap();
  put($("time"), state.nodes.map((node) => [node.node, node.parts, node.step_s]), times);
  drawCharts();
  put($("nodes"), [state.nodes, state.gone, chosen, state.commands, me.role], nodes);
  put($("links"), [state.links, chosen], links);
  put($("views"), [state.timeline, state.gone, state.commands], views);
  $("warnings-card").hidden = !state.warnings.length;
  put($("warnings"), state.warnings, () => state.warnings.toReversed().map((one) =>
    h("li", {}, h("time", {}, clock(one.time)), one.node && h("b", {}, one.node), h("span", {}, one.message))));
  put($("commands"), [state.commands, me.role, run.paused], () => runCommands());
  put($("foot"), [run.run, run.term, state.checkpoints], () => foot(run));
}

function drawMap() {
  const note = state.bottleneck;
  put($("map-note"), [note], () => (note ? h("span", { class: "held" }, `held up by ${note.text}`) : ""));
  $("map").closest(".columns").classList.toggle("stacked", (state.plan?.columns.length ?? 0) > 3);
  const key = JSON.stringify([state.nodes, state.links, state.plan, chosen]);
  if ($("map").dataset.key !== key) {
    $("map").dataset.key = key;
    map($("map"), state, chosen, choose);
  }
  put($("map-legend"), [state.nodes.map((node) => [node.node, node.region])], legend);
}

function choose(name) {
  chosen = name;
  show();
}

function legend() {
  const found = new Map();
  for (const node of state.nodes) found.set(node.region ?? 0, [...(found.get(node.region ?? 0) ?? []), node.node]);
  const regions = [...found].sort(([a], [b]) => a - b).map(([number, names]) =>
    h("span", { title: names.join(", ") }, h("i", { class: "chip region-" + (number % 6) }), found.size > 1 ? `region ${number + 1}: ${short(names)}` : "one region"));
  return [...regions, h("span", {}, h("i", { class: "stroke solid" }), "activations, gradients"), h("span", {}, h("i", { class: "stroke dashed" }), "updates")];
}

const short = (names) => (names.length > 4 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", "));

const sets = (found) => Object.entries(found ?? {}).map(([name, one]) =>
  h("span", { class: "set" }, `${name} ${one.loss.toFixed(3)}` + (one.perplexity ? `, perplexity ${one.perplexity.toPrecision(4)}` : "")));

function tiles() {
  const trains = state.nodes.some((node) => node.parts);
  const run = state.run, sent = run.bytes_updates + run.bytes_activations;
  const tile = (title, value, detail, kind = "") => h("div", { class: "tile " + kind }, h("span", { class: "title" }, title), h("b", {}, value), h("span", { class: "detail" }, detail));
  return [
    tile("Step", run.steps ? [`${run.step}`, h("small", {}, ` / ${run.steps}`)] : `${run.step}`, run.eta_s ? `${seconds(run.eta_s)} to go` : run.phase === "done" ? "all done" : " "),
    tile("Loss", run.loss === null ? "–" : run.loss.toFixed(3), run.eval ? [`validation ${run.eval.loss.toFixed(3)} at step ${run.eval.step}`, ...sets(run.eval.sets)] : "no evaluation yet"),
    tile("Speed", run.tokens_per_second ? [count(run.tokens_per_second), h("small", {}, " tokens/s")] : "–", run.step_s ? `${seconds(run.step_s)} a step` : " "),
    tile("Bytes", bytes(sent), run.savings || "of updates and activations"),
    tile("Held up by", state.bottleneck ? (state.bottleneck.to ? `${state.bottleneck.node} → ${state.bottleneck.to}` : state.bottleneck.node) : trains ? "nothing" : "–",
      state.bottleneck ? state.bottleneck.text : trains ? "no device and no link is full" : "nobody trains", state.bottleneck ? "held" : ""),
  ];
}

function times() {
  const busy = state.nodes.filter((node) => node.parts);
  if (!busy.length) return h("div", { class: "empty" }, "Nobody has trained in the last half minute.");
  const rows = busy.map((node) => {
    const bar = h("div", { class: "split", role: "img", "aria-label": PARTS.map((part) => `${part} ${percent(node.parts[part])}`).join(", ") });
    for (const part of PARTS) {
      const piece = h("i", { class: "part-" + part, title: `${node.node}: ${part} ${percent(node.parts[part])}, ${seconds(node.parts[part] * node.step_s)}` });
      piece.style.width = node.parts[part] * 100 + "%";
      bar.append(piece);
    }
    return h("div", { class: "split-row" }, h("span", { class: "who" }, node.node), bar, h("span", { class: "num" }, seconds(node.step_s)));
  });
  return [...rows, h("div", { class: "legend lines" }, PARTS.map((part) => h("div", {}, h("i", { class: "chip part-" + part }), h("b", {}, part), PART_WORDS[part])))];
}

function drawCharts() {
  const rows = curves.points;
  const key = JSON.stringify([curves.edition, rows.length, rows.at(-1), curves.evals.length]);
  if ($("chart-loss").dataset.key === key) return;
  $("chart-loss").dataset.key = key;
  const of = (at) => rows.map((row) => [row[0], row[at]]);
  chart($("chart-loss"), [
    { name: "training", color: "c1", points: of(1) },
    { name: "validation", color: "c3", points: curves.evals, dots: curves.evals.length < 40 },
  ], { empty: "no step yet" });
  chart($("chart-speed"), [{ name: "tokens/s, median of nine steps", color: "c1", points: smoothed(of(2)) }], { format: count, from: 0, steady: true, empty: "no step yet" });
  chart($("chart-bytes"), [
    { name: "sent", color: "c1", points: of(3) },
    { name: "in fp16", color: "c4", points: of(4), dashed: true },
  ], { format: bytes, log: true, steady: true, empty: "nothing was sent yet" });
  const known = rows.filter((row) => row[5].some((part) => part > 0));
  chart($("chart-time"), PARTS.map((part, at) => ({ name: part, color: "part-" + part, points: known.map((row) => [row[0], row[5][at]]) })),
    { format: seconds, stacked: true, from: 0, steady: true, empty: "no step since the coordinator started" });
}

function nodes() {
  const here = state.nodes.filter((node) => node.attending !== false);
  const spares = here.filter((node) => node.stage === null).length, silent = state.nodes.length - here.length;
  $("nodes-note").textContent = `${here.length} in` + (spares ? `, ${spares} not training` : "") + (silent ? `, ${silent} not back yet` : "") + (state.gone.length ? `, ${state.gone.length} gone` : "");
  if (!state.nodes.length && !state.gone.length) return h("div", { class: "empty" }, "Nobody is here. The join line brings machines in.");
  return [...state.nodes.map(nodeRow), ...state.gone.toReversed().map(goneRow)];
}

/** A node that was here: when it went and why, and what would let it come again. */
function goneRow(node) {
  return h("article", { class: "node-row gone" },
    h("div", { class: "who" }, h("i", { class: "chip" }), h("b", {}, node.node), h("span", { class: "faint" }, node.device ?? "")),
    h("div", { class: "what" }, h("b", {}, `gone since ${clock(node.left)}`), `: ${node.why}`),
    (node.held || node.evicted) && nodeCommands(node));
}

function nodeRow(node) {
  const use = node.parts ? node.parts.compute + node.parts.codec : null;
  const silent = node.heard_s !== undefined && node.heard_s > 3;
  const say = node.advice ?? {};
  return h("article", { class: "node-row" + (chosen === node.node ? " chosen" : ""), onclick: () => choose(chosen === node.node ? null : node.node) },
    h("div", { class: "who" }, h("i", { class: "chip region-" + ((node.region ?? 0) % 6) }), h("b", {}, node.node), h("span", { class: "faint" }, node.device ?? "")),
    h("div", { class: "what" }, h("span", {}, say.doing ?? node.role), node.doing && node.stage !== null && h("span", { class: "faint" }, ` · ${node.doing}`)),
    h("div", { class: "cell" }, h("span", { class: "key" }, "share"), node.share === null ? "–" : percent(node.share)),
    h("div", { class: "cell" }, h("span", { class: "key" }, "busy"), use === null ? "–" : [meter(use, "use", "busy"), percent(use)]),
    h("div", { class: "cell" }, h("span", { class: "key" }, "heard"), h("span", { class: silent ? "late" : "" }, node.heard_s === undefined ? "–" : `${node.heard_s.toFixed(1)} s ago`)),
    h("div", { class: "cell faint" }, h("span", { class: "key" }, "at"), node.dials_out ? "dials out" : node.address),
    nodeCommands(node),
    typeof node.score === "number" && h("div", { class: "better" }, `the others judge what it sends at ${digits(node.score)} (1 is usual)`),
    node.held && h("div", { class: "better" }, node.held),
    say.better && h("div", { class: "better" }, say.better));
}

function links() {
  const shown = state.links.filter((link) => !chosen || link.from === chosen || link.to === chosen);
  $("links-note").textContent = chosen ? `of ${chosen}` : "used of measured, over the last half minute";
  if (!shown.length) return h("div", { class: "empty" }, noLinks());
  const sorted = shown.toSorted((a, b) => (b.load ?? -1) - (a.load ?? -1));
  return h("table", {},
    h("thead", {}, h("tr", {}, ["from → to", "carries", "used of measured", "", "one way"].map((word) => h("th", {}, word)))),
    h("tbody", {}, sorted.map((link) => h("tr", { class: link.bottleneck ? "held" : "", title: link.way ?? "" },
      h("td", {}, h("b", {}, link.from), " → ", h("b", {}, link.to)),
      h("td", { class: "faint" }, link.carries ?? "–"),
      h("td", { class: "num" }, flow(link)),
      h("td", {}, link.load === null ? "" : meter(link.load, heat(link.load), "load")),
      h("td", { class: "num faint" }, link.latency_s === null || link.latency_s === undefined ? "–" : seconds(link.latency_s))))));
}

function noLinks() {
  const others = state.nodes.filter((node) => node.node !== chosen).length;
  if (!state.nodes.length) return "Nobody is here, so there is no link.";
  if (others < (chosen ? 1 : 2)) return "Only one node is here, so there is no link.";
  return chosen ? `No link of ${chosen} is used or was measured.` : "No link was measured yet.";
}

function views() {
  const rows = state.timeline.map((view) => ({ time: view.time, make: () => h("li", {},
    h("div", { class: "when" }, h("b", {}, `view ${view.view}`), h("time", {}, clock(view.time)), h("span", { class: "faint" }, `after step ${view.step} · ${some(view.shape[0], "pipeline")} of ${some(view.shape[1], "stage")} · ${some(view.nodes, "node")}`)),
    h("div", {}, view.why)) }));
  for (const gone of state.gone)
    rows.push({ time: gone.left, make: () => h("li", { class: "gone" }, h("div", { class: "when" }, h("b", {}, `${gone.node} is gone`), h("time", {}, clock(gone.left)), (gone.held || gone.evicted) && nodeCommands(gone)), h("div", {}, gone.why)) });
  if (!rows.length) return h("li", { class: "empty" }, "The first view is made when enough nodes are in.");
  return rows.toSorted((a, b) => b.time - a.time).map((row) => row.make());
}

function foot(run) {
  const newest = state.checkpoints.at(-1);
  return [h("span", {}, `run ${run.run}`), h("span", {}, `term ${run.term}`), newest && h("span", {}, `newest checkpoint: step ${newest.step}, ${newest.path}`), h("span", {}, `farflung ${me.version}`), h("span", {}, me.role)];
}

// ---- actions ----------------------------------------------------------------------------------

function runCommands() {
  if (me.role !== "operator") return [];
  const fits = state.run.paused ? "resume" : "pause";
  return state.commands.includes(fits) && [h("button", { onclick: () => ask(fits, "") }, COMMANDS[fits][0])];
}

function nodeCommands(node) {
  const can = (node.evicted ? ["readmit"] : node.held ? ["resume"] : ["pause", "drain", "evict"]).filter((name) => state.commands.includes(name));
  return me.role === "operator" && can.length > 0 && h("div", { class: "buttons" }, can.map((name) =>
    h("button", { class: "small", onclick: (event) => { event.stopPropagation(); ask(name, node.node); } }, COMMANDS[name][0])));
}

function ask(command, node) {
  const [word, title, text] = COMMANDS[node && COMMANDS[`${command} node`] ? `${command} node` : command];
  $("act-title").textContent = title.replace("{node}", node);
  $("act-text").textContent = text;
  $("act-error").textContent = "";
  $("act-go").textContent = word;
  $("act-go").onclick = () => act(command, node);
  $("act-dialog").showModal();
}

async function act(command, node) {
  $("act-go").disabled = true;
  try {
    const answer = await fetch("command", {
      method: "POST", headers: { "x-farflung-action": me.action }, body: JSON.stringify({ command, node, argument: "" }),
    });
    const said = await answer.json();
    if (!answer.ok) { $("act-error").textContent = said.hint ? `${said.error} (${said.hint})` : said.error; return; }
    $("act-dialog").close();
    toast(said.answer);
  } catch {
    $("act-error").textContent = "no answer from the coordinator";
  } finally {
    $("act-go").disabled = false;
  }
}

function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 6000);
}

async function showJoin() {
  const answer = await fetch("join-line");
  if (!answer.ok) return toast((await answer.json()).error);
  $("join-line").textContent = (await answer.json()).line;
  $("join-dialog").showModal();
}

async function copyJoin() {
  const text = $("join-line").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // no clipboard without TLS: select the line, so that Ctrl-C takes it
    getSelection().selectAllChildren($("join-line"));
    return toast("selected: copy it with Ctrl-C");
  }
  $("join-dialog").close();
  toast("copied");
}

// ---- light and dark -----------------------------------------------------------------------------

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

function turnTheme() {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  theme(next);
  localStorage.setItem("farflung-theme", next);
}

theme(localStorage.getItem("farflung-theme"));
$("theme").onclick = turnTheme;
$("join").onclick = showJoin;
$("join-copy").onclick = copyJoin;
$("join-close").onclick = () => $("join-dialog").close();
$("act-cancel").onclick = () => $("act-dialog").close();
$("logout").onclick = async () => { stream?.close(); await fetch("logout", { method: "POST" }); location.reload(); };
$("login-form").onsubmit = (event) => { event.preventDefault(); login($("token").value.trim()); };
begin();
