// The page: one time and one job, and views of them: the verdict, ranks over time, services, nodes,
// findings, SQL. What stands now comes as events; of a time of the past it is asked for once.
"use strict";

import { events, json, request, signInByLink, signOut, signedIn, useToken } from "./api.js";
import { open as openConsole, timeChanged } from "./console.js";
import { Heat } from "./heat.js";
import { NodeMap } from "./map.js";
import { openRank } from "./rank.js";
import { Services } from "./services.js";
import { duration, element, table } from "./table.js";
import { TimePicker, clock } from "./time.js";

const $ = (id) => document.getElementById(id);
const STALE_MS = 6000, WINDOWS_MS = 1000;
/** Lengths of windows, milliseconds, and cells of the heat map that are asked for at once. */
const WINDOW_MS = [500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000, 1800000], CELLS = 1e6;
let watched = null, heard = 0, job = null, stop = null, kept = null;

const time = new TimePicker(() => { heat.clear(); follow(); timeChanged(time.given); showFindings(); services.changed(); });
const heat = new Heat($("map-frame"), $("map"), $("map-labels"), (text) => { $("cell").textContent = text; }, (rank) => rank && pick(rank));
const services = new Services(() => time.given);
const nodes = new NodeMap($("nodes-frame"), $("nodes-map"), (text) => { $("node-said").textContent = text; }, (node) => showNode(node));

function tab(name) {
  for (const button of document.querySelectorAll("#tabs button")) {
    const shown = button.getAttribute("aria-controls") === name;
    button.setAttribute("aria-selected", String(shown));
    button.tabIndex = shown ? 0 : -1;
    $(button.getAttribute("aria-controls")).hidden = !shown;
  }
  if (name === "ranks") heat.draw();
  if (name === "nodes") nodes.draw();
  services.look(name === "services");
}

const gone = (coverage) => coverage.missing.map((of) => `${of.node}: ${of.reason}`);

/** What stands, or stood. */
function show() {
  // (Of stores without a call the verdict is of no job.)
  const isOfSome = watched.ranks.length || watched.job?.nranks || watched.job?.is_ill;
  const now = isOfSome ? watched.job : null, ofStores = watched.agent === "";
  time.endsAt(watched.at_ns, ofStores && !time.given);
  time.resolve(watched.at_ns);
  const whose = now && now.name ? `${/^(all jobs|job )/.test(now.name) ? "" : "Job "}${now.name}: ` : "";
  const said = now ? `${whose}${now.sentence}${now.cause ? ` Cause: ${now.cause}` : ""}` : nothing();
  // Who and by how much at a glance, then the rest.
  const end = /[.,;](?= )|(?= \()/.exec(said.slice(whose.length)), first = end ? whose.length + end.index + end[0].length : said.length;
  const rest = element("span", said.slice(first), "rest"), open = $("headline-more").getAttribute("aria-expanded") === "true" ? "open" : "";
  $("headline").replaceChildren(element("strong", said.slice(0, first)), rest);
  $("headline").className = `headline ${now ? (now.is_ill ? "ill" : "well") : "doubt"} ${open}`;
  $("headline-more").hidden = !rest.textContent;
  const missing = gone(watched.coverage);
  $("partial").textContent = missing.length ? `PARTIAL: ${watched.coverage.answered} of ${watched.coverage.asked} nodes answered; missing ${missing.join("; ")}` : "";
  $("state").textContent = [`${ofStores ? "stores" : watched.agent}, ${time.given ? "up to" : "at"} ${clock(watched.at_ns)}`,
    now && now.clock_bound_ns !== null ? `clocks within ${duration(now.clock_bound_ns)}` : "", ...(now ? now.not_visible : []), watched.brief || ""].filter(Boolean).join(" · ");
  table($("jobs"), ["job", "ranks", "verdict", "rank", "host", "GPUs lost", "step", "in words"],
    watched.jobs.map((of) => [of.name, of.nranks, of.verdict, of.culprits[0]?.rank ?? "", of.culprits[0]?.node ?? "", of.gpus_lost === null ? null : Number(of.gpus_lost.toPrecision(3)), of.step_ns ? duration(of.step_ns) : "", of.sentence, of]),
    { caption: "Those that are not well first; click one to follow it", mark: (row) => (row[8].is_ill ? "culprit" : ""), pick: (row) => { job = row[8].id; heat.clear(); follow(); tab("ranks"); } });
  table($("rank-table"), ["rank", "host", "pid", "role", "late", "waits", "excess", "z", "windows"],
    watched.ranks.map((rank) => [rank.rank, rank.node, rank.pid, rank.role, duration(rank.late_ns), duration(rank.wait_ns), duration(rank.excess_ns), rank.z === null ? "" : rank.z.toFixed(1).replace(/^-0\.0$/, "0.0"), `${rank.flagged}/${rank.windows}`, rank]),
    { caption: `${watched.ranks.length} ranks, worst first; click one for its steps`, mark: (row) => (row[3] === "culprit" ? "culprit" : ""), pick: (row) => pick(row[9]) });
  nodes.show(watched);
  $("nodes-summary").textContent = nodes.summary();
  table($("node-table"), ["node", "state", "recording", "ranks", "rows", "clock bound", "release"],
    watched.nodes.map((node) => [node.name, watched.coverage.missing.some((of) => of.node === node.name) ? `${node.state}, missing` : node.state, node.recording, node.ranks.join(","), node.rows, duration(node.clock_bound_ns), node.version]),
    { caption: `${watched.nodes.length} nodes`, mark: (row) => (row[1] === "dead" || row[1].includes("missing") ? "culprit" : "") });
}

/** Why there is no verdict, and what to do. */
function nothing() {
  const all = watched.nodes, off = all.filter((node) => !node.recording.startsWith("on"));
  if (watched.agent && all.length && off.length === all.length) {
    const why = [...new Set(off.map((node) => node.recording).filter((state) => state && state !== "off"))].join("; ");
    return `No node records${why ? ` (${why})` : ""}. Start agents as root and without --capture off; rankmesh check on a host says what is lacking.`;
  }
  if (!watched.ranks.length && watched.jobs.every((job) => !job.nranks)) {
    return watched.agent ? "No job makes calls now. Start one (mpirun, torchrun, srun), or choose a time of the past above." :
      "No job made calls at this time. Choose another above.";
  }
  return "No verdict stands on this job: its ranks have met too few times yet, or it has ended. Choose another below, or a time of the past above.";
}

function showNode(node) {
  $("node-said").textContent = nodes.words(node);
  const span = node.span_ns ? `holds ${clock(node.span_ns[0])} to ${clock(node.span_ns[1])}` : "";
  $("node").replaceChildren(element("h3", node.name), element("p", [nodes.words(node), node.rows ? `${node.rows} rows` : "", span, node.version ? `release ${node.version}` : ""].filter(Boolean).join(" · ")));
  const own = watched.ranks.filter((rank) => rank.node === node.name);
  if (!own.length) return;
  const place = element("div");
  $("node").append(place);
  table(place, ["rank", "pid", "role", "late", "waits"], own.map((rank) => [rank.rank, rank.pid, rank.role, duration(rank.late_ns), duration(rank.wait_ns), rank]),
    { caption: "Its ranks; click one for its steps", mark: (row) => (row[2] === "culprit" ? "culprit" : ""), pick: (row) => pick(row[5]) });
}

/** Follows what stands, or asks once for a time of the past; an old frame is never shown as live. */
async function follow() {
  if (stop) stop.abort();
  const mine = stop = new AbortController();
  $("map-note").textContent = "asking …";
  windows(mine.signal);
  const of = new URLSearchParams(job ? { job } : {});
  if (time.given) {
    heard = 0;
    $("state").textContent = "asking …";
    try {
      for (const [name, value] of Object.entries(time.given)) of.set(name, value);
      watched = JSON.parse(await (await request(`/api/v1/watch?${of}`, { signal: mine.signal })).text());
      show();
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status === 401) return signIn(error.message);
      $("headline").textContent = error.message;
      $("headline").className = "headline doubt";
      $("state").textContent = "";
    }
    return;
  }
  while (!mine.signal.aborted) {
    try {
      await events(`/api/v1/watch/events?${of}`, (name, data) => {
        if (name === "watch") {
          watched = data;
          heard = Date.now();
          show();
        } else {
          $(watched ? "state" : "headline").textContent = data;
        }
        // Thousands of ranks come twice a second; nothing in it needs the last digits.
      }, mine.signal, JSON.parse);
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status === 401) return signIn(error.message);
      $("state").textContent = error.message;
    }
    await new Promise((done) => setTimeout(done, 3000));
  }
}

/** What is asked for of windows of a time of the past: as many as are seen. */
function windowsOf({ since_ns, until_ns }) {
  const ms = Number(until_ns - since_ns) / 1e6, ranks = Math.max(1, watched ? watched.ranks.length : 1), most = Math.max(60, Math.min(600, CELLS / ranks));
  const window_ms = WINDOW_MS.find((of) => ms / of <= most) || Math.ceil(ms / most);
  return { since_ns: String(since_ns), until_ns: String(until_ns), window_ns: String(window_ms * 1000000), timeout: "60s" };
}

/** Windows of ranks, as they come. */
async function windows(signal) {
  const past = time.given;
  while (!signal.aborted) {
    let wait = WINDOWS_MS;
    try {
      const query = new URLSearchParams(job ? { job } : {});
      if (past) {
        // The span's end is known when the verdict on it has come.
        while (!time.resolved && !signal.aborted) await new Promise((done) => setTimeout(done, 200));
        if (signal.aborted) return;
        for (const [name, value] of Object.entries(windowsOf(time.resolved))) query.set(name, value);
      } else {
        const last = heat.windows[heat.windows.length - 1];
        if (heat.known()) query.set("known", heat.known());
        if (last && watched) query.set("since_ns", String(last.end_ns));
      }
      // Millions of cells: only its epoch needs all digits.
      const text = await (await request(`/api/v1/board?${query}`, { signal })).text();
      const board = JSON.parse(text);
      heat.take(board, /"epoch":(\d+)/.exec(text)[1]);
      $("metric").value = heat.metric;
      const missing = gone(board.coverage);
      $("map-note").textContent = `${heat.ranks.length} ranks, ${heat.windows.length} windows of ${duration(heat.window_ns)}` +
        (board.clock_bound_ns === null ? "; clocks are not known" : `; clocks within ${duration(board.clock_bound_ns)}`) + (missing.length ? `; PARTIAL: missing ${missing.join("; ")}` : "");
      if (board.more) wait = 0;
      // Of stores, and of the past, there is no more than this.
      if (!board.judge) return;
    } catch (error) {
      if (signal.aborted) return;
      $("map-note").textContent = error.message;
      if (past) return;
      wait = 5000;
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

/** One rank: its steps, and where it is. */
function pick(rank) {
  tab("ranks");
  openRank(rank, time.span(), job);
}

async function text(place, path) {
  place.textContent = "asking …";
  try {
    const found = await json(path);
    place.textContent = [found.text, found.commands].filter(Boolean).join("\n");
  } catch (error) { place.textContent = error.message; }
}

/** Findings of the page's time; of now all. */
function showFindings() {
  if (!kept) return;
  const { columns, rows } = kept, at = columns.indexOf("ts_ns"), span = time.given && time.resolved;
  const shown = span ? rows.filter((row) => BigInt(row[at]) >= span.since_ns && BigInt(row[at]) < span.until_ns) : rows;
  const wanted = ["ts_ns", "node", "job_id", "verdict", "rank", "culprit_node", "cause", "detail"].map((name) => columns.indexOf(name)).filter((column) => column >= 0);
  table($("finding-table"), wanted.map((column) => (column === at ? "when" : columns[column])),
    shown.map((row) => [...wanted.map((column) => (column === at ? clock(row[at]) : row[column])), row[at]]),
    { caption: `${shown.length} findings, newest first`, pick: (row) => text($("finding-text"), `/api/v1/explain?timeout=60s&finding=${row[wanted.length]}`) });
}

/** What was found before, and then what is found. */
async function findings() {
  try {
    const found = await json("/api/v1/findings");
    kept = { columns: found.columns.map((column) => column.name), rows: found.rows.reverse() };
    const missing = gone(found.coverage);
    $("finding-note").textContent = missing.length ? `PARTIAL: missing ${missing.join("; ")}` : "";
    showFindings();
    for (;;) {
      await events("/api/v1/findings/events", (name, data) => {
        if (name !== "finding") return;
        kept.rows.unshift(kept.columns.map((column) => data[column]));
        showFindings();
      });
      await new Promise((done) => setTimeout(done, 3000));
    }
  } catch (error) { $("finding-note").textContent = error.message; }
}

function explain() {
  const query = new URLSearchParams({ timeout: "60s", ...(time.given || {}) });
  if (job) query.set("job", job);
  text($("explained"), `/api/v1/explain?${query}`);
}

function signIn(why) {
  signOut();
  $("headline").textContent = why;
  $("sign-in").hidden = false;
}

// What an agent says comes every two seconds; of stores and of the past nothing new comes.
setInterval(() => document.body.classList.toggle("stale", heard > 0 && watched.agent !== "" && Date.now() - heard > STALE_MS), 1000);
for (const button of document.querySelectorAll("#tabs button")) button.addEventListener("click", () => tab(button.getAttribute("aria-controls")));
$("tabs").addEventListener("keydown", (event) => {
  const all = [...document.querySelectorAll("#tabs button")], step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
  next.focus();
  tab(next.getAttribute("aria-controls"));
});
$("headline-more").addEventListener("click", () => {
  const open = $("headline").classList.toggle("open");
  $("headline-more").setAttribute("aria-expanded", String(open));
  $("headline-more").textContent = open ? "Less" : "More";
});
$("metric").addEventListener("change", () => heat.choose($("metric").value));
$("explain").addEventListener("click", explain);
$("sign-in").addEventListener("submit", (event) => { event.preventDefault(); useToken($("token").value.trim()); location.reload(); });

try {
  await signInByLink();
  if (signedIn()) {
    follow();
    findings();
    openConsole(time);
  } else {
    signIn("Not signed in.");
  }
} catch (error) {
  signIn(error.message);
}
