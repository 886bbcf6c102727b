// The page: what stands, live; ranks over time; the past; nodes; findings; SQL.
"use strict";

import { events, json, request, signInByLink, signOut, signedIn, useToken } from "./api.js";
import { open as openConsole } from "./console.js";
import { Heat } from "./heat.js";
import { clock, duration, element, table } from "./table.js";

const $ = (id) => document.getElementById(id);
const STALE_MS = 6000, WINDOWS_MS = 1000;
let watched = null, heard = 0, job = null, stop = null;

const heat = new Heat($("map-frame"), $("map"), (text) => { $("cell").textContent = text; }, (rank) => rank && pick(rank));

function tab(name) {
  for (const button of document.querySelectorAll("#tabs button")) {
    const shown = button.getAttribute("aria-controls") === name;
    button.setAttribute("aria-selected", String(shown));
    $(button.getAttribute("aria-controls")).hidden = !shown;
  }
  if (name === "ranks") heat.draw();
}

/** What stands. */
function show() {
  const now = watched.job;
  $("headline").textContent = now ? `${now.name ? `Job ${now.name}: ` : ""}${now.sentence}${now.cause ? ` Cause: ${now.cause}` : ""}` : "No verdict stands on any job.";
  $("headline").classList.toggle("well", !(now && now.is_ill));
  const missing = watched.coverage.missing.map((gone) => `${gone.node}: ${gone.reason}`);
  $("state").textContent = [`${watched.agent || "stores"} at ${clock(watched.at_ns)} UTC`, missing.length ? `PARTIAL: missing ${missing.join("; ")}` : "",
    ...(now ? now.not_visible : []), watched.brief || ""].filter(Boolean).join(" · ");
  $("state").classList.toggle("partial", missing.length > 0);
  table($("jobs"), ["job", "ranks", "verdict", "rank", "host", "GPUs lost", "step", "in words"],
    watched.jobs.map((of) => [of.name, of.nranks, of.verdict, of.culprits[0]?.rank ?? "", of.culprits[0]?.node ?? "", of.gpus_lost, of.step_ns ? duration(of.step_ns) : "", of.sentence, of]),
    { caption: "Jobs, those that are not well first", mark: (row) => (row[8].is_ill ? "culprit" : ""), pick: (row) => { job = row[8].id; follow(); } });
  table($("rank-table"), ["rank", "host", "pid", "role", "late", "waits", "excess", "z", "windows"],
    watched.ranks.map((rank) => [rank.rank, rank.node, rank.pid, rank.role, duration(rank.late_ns), duration(rank.wait_ns), duration(rank.excess_ns), rank.z === null ? "" : rank.z.toFixed(1), `${rank.flagged}/${rank.windows}`, rank]),
    { caption: "Ranks, worst first", mark: (row) => (row[3] === "culprit" ? "culprit" : ""), pick: (row) => pick(row[9]) });
  table($("node-table"), ["node", "state", "recording", "ranks", "rows", "clock bound", "release"],
    watched.nodes.map((node) => [node.name, node.state, node.recording, node.ranks.join(","), node.rows, duration(node.clock_bound_ns), node.version]),
    { caption: "Nodes of the mesh", mark: (row) => (row[1] === "dead" ? "culprit" : "") });
}

/** Follows a job; an old frame is never shown as live. */
async function follow() {
  if (stop) stop.abort();
  const mine = stop = new AbortController();
  while (!mine.signal.aborted) {
    try {
      const of = job ? `?job=${encodeURIComponent(job)}` : "";
      await events(`/api/v1/watch/events${of}`, (name, data) => {
        if (name === "watch") {
          watched = data;
          heard = Date.now();
          show();
        } else if (!watched) {
          $("headline").textContent = data;
        } else {
          $("state").textContent = data;
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

/** Windows of ranks, as they come. */
async function windows() {
  for (;;) {
    let wait = WINDOWS_MS;
    try {
      const query = new URLSearchParams();
      if (job) query.set("job", job);
      const last = heat.windows[heat.windows.length - 1];
      if (heat.known()) query.set("known", heat.known());
      if (last && watched) query.set("since_ns", String(last.end_ns));
      // Millions of cells: only its epoch needs all digits.
      const text = await (await request(`/api/v1/board?${query}`)).text();
      const board = JSON.parse(text);
      heat.take(board, /"epoch":(\d+)/.exec(text)[1]);
      $("map-note").textContent = `${heat.ranks.length} ranks, ${heat.windows.length} windows of ${duration(heat.window_ns)}` +
        (board.clock_bound_ns === null ? "; clocks are not known" : `; clocks within ${duration(board.clock_bound_ns)}`);
      if (board.more) wait = 0;
      // Of stores there is no more than this.
      if (!board.judge) return;
    } catch (error) {
      $("map-note").textContent = error.message;
      wait = 5000;
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

/** One rank: where its time goes, and where it is. */
async function pick(rank) {
  tab("ranks");
  $("rank-of").textContent = `Rank ${rank.rank} on ${rank.node}, process ${rank.pid}`;
  $("stack").textContent = "reading its stack …";
  $("rank").replaceChildren();
  const node = String(rank.node).replaceAll("'", "''"), pid = Number(rank.pid);
  const times = `SELECT func AS call, count(*) AS calls, avg(duration_ns) / 1e6 AS mean_ms, max(duration_ns) / 1e6 AS longest_ms FROM collectives WHERE node = '${node}' AND pid = ${pid} GROUP BY func ORDER BY sum(duration_ns) DESC`;
  try {
    const found = await json("/api/v1/query", { method: "POST", body: times });
    table($("rank"), found.columns.map((column) => column.name), found.rows, { caption: "Its calls" });
  } catch (error) { $("rank").textContent = error.message; }
  try {
    const query = new URLSearchParams({ ranks: String(rank.rank), nodes: rank.node, samples: "5", every: "20ms" });
    const answer = await json(`/api/v1/stacks?${query}`);
    $("stack").textContent = JSON.stringify(answer.merged, null, 1);
  } catch (error) { $("stack").textContent = `no stack: ${error.message}`; }
}

async function text(place, path) {
  place.textContent = "asking …";
  try {
    const found = await json(path);
    place.textContent = [found.text, found.commands].filter(Boolean).join("\n");
  } catch (error) { place.textContent = error.message; }
}

const span = () => {
  const query = new URLSearchParams({ timeout: "60s" });
  for (const [name, id] of [["since", "since"], ["until", "until"], ["job", "of-job"]]) {
    if ($(id).value.trim()) query.set(name, $(id).value.trim());
  }
  return query;
};

/** What was found before, and then what is found. */
async function findings() {
  const rows = [];
  const shown = (columns) => table($("finding-table"), columns, rows, {
    caption: "Findings, newest first", pick: (row) => text($("finding-text"), `/api/v1/explain?timeout=60s&finding=${row[columns.indexOf("ts_ns")]}`),
  });
  let columns = [];
  try {
    const found = await json("/api/v1/findings");
    columns = found.columns.map((column) => column.name);
    rows.push(...found.rows.reverse());
    shown(columns);
    for (;;) {
      await events("/api/v1/findings/events", (name, data) => {
        if (name !== "finding") return;
        rows.unshift(columns.map((column) => data[column]));
        shown(columns);
      });
      await new Promise((done) => setTimeout(done, 3000));
    }
  } catch (error) { $("finding-text").textContent = error.message; }
}

function signIn(why) {
  signOut();
  $("headline").textContent = why;
  $("sign-in").hidden = false;
}

// What an agent says comes every two seconds; of stores nothing new comes.
setInterval(() => document.body.classList.toggle("stale", heard > 0 && watched.agent !== "" && Date.now() - heard > STALE_MS), 1000);
for (const button of document.querySelectorAll("#tabs button")) button.addEventListener("click", () => tab(button.getAttribute("aria-controls")));
$("metric").addEventListener("change", () => heat.show($("metric").value));
$("explain").addEventListener("click", () => text($("explained"), `/api/v1/explain?timeout=30s${job ? `&job=${encodeURIComponent(job)}` : ""}`));
$("span").addEventListener("submit", (event) => { event.preventDefault(); text($("judged"), `/api/v1/stragglers?${span()}`); });
$("explain-span").addEventListener("click", () => text($("judged"), `/api/v1/explain?${span()}`));
$("sign-in").addEventListener("submit", (event) => { event.preventDefault(); useToken($("token").value.trim()); location.reload(); });

try {
  await signInByLink();
  if (signedIn()) {
    follow();
    windows();
    findings();
    openConsole();
  } else {
    signIn("Not signed in.");
  }
} catch (error) {
  signIn(error.message);
}
