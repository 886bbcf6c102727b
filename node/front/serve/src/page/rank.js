// From a rank to its steps, from a step to all ranks in it, and to the call stack.
"use strict";

import { exact, json, question } from "./api.js";
import { Lanes } from "./lanes.js";
import { duration, element, table } from "./table.js";
import { clock, timeOfDay } from "./time.js";

const $ = (id) => document.getElementById(id);
/** Calls of a rank that are asked for, and of these the newest that are in sight at first. */
const CALLS = 400, AT_FIRST = 12;
/** What hosts record of a process: lane, table, what it is. */
const BESIDE = [
  ["off the CPU", "offcpu", "coalesce(reason, 'off the CPU') || coalesce(' (' || next_comm || ')', '')"],
  ["disk", "block_io", "coalesce(op, 'request') || ' ' || coalesce(device, '')"],
  ["memory", "memory_events", "event"],
  ["CUDA", "cuda_calls", "func"],
];

let rank = null, span = null, job = null, calls = [], asked = 0, askedStep = 0;
const say = (id) => (text) => { $(id).textContent = text; };
const ofRank = new Lanes($("rank-frame"), $("rank-lanes"), say("rank-said"), (found) => found.data && openStep(found.data));
const ofStep = new Lanes($("step-frame"), $("step-lanes"), say("step-said"), (found) => found.data && openRank(found.data, span, job));

/** SQL with values; the answer. */
async function ask(sql, parameters) {
  return exact(await (await question({ sql, parameters }, { timeout: "20s" })).text());
}

/** Where one is, from the job inwards. */
function path(...parts) {
  $("path").replaceChildren(...parts.filter(Boolean).map(([text, open], at) => {
    const item = element("li");
    const place = element(open ? "button" : "span", text);
    if (open) { place.type = "button"; place.addEventListener("click", open); }
    else if (at) place.setAttribute("aria-current", "true");
    item.append(place);
    return item;
  }));
}

const named = (of) => `rank ${of.rank} on ${of.node}`;
const jobPart = () => [job ? `job ${job}` : "all jobs", () => $("map-frame").scrollIntoView({ block: "nearest" })];

/** A rank: its calls and what its host recorded beside them, in time. */
export async function openRank(of, within, ofJob) {
  [rank, span, job] = [of, within, ofJob];
  const mine = ++asked;
  askedStep++;
  $("detail").hidden = false;
  $("step").hidden = true;
  $("rank-title").textContent = `Rank ${of.rank} on ${of.node}, process ${of.pid}`;
  path(jobPart(), [named(of)]);
  $("rank-said").textContent = "reading its calls …";
  $("rank").replaceChildren();
  ofRank.show([], null);
  $("detail").scrollIntoView({ block: "nearest" });
  if (stackOf !== `${of.node} ${of.pid}`) $("stack").replaceChildren();
  const whose = { node: of.node, pid: of.pid }, within_ns = { since: within.since_ns, until: within.until_ns };
  try {
    const sql = `SELECT ts_ns, duration_ns, func, seq, printf('%016x', comm_hash) AS comm, bytes, comm_hash IS NOT NULL AND seq IS NOT NULL AS is_step
      FROM collectives WHERE node = :node AND pid = :pid AND ts_ns >= :since AND ts_ns < :until ORDER BY ts_ns DESC LIMIT ${CALLS}`;
    const found = await ask(sql, { ...whose, ...within_ns });
    if (mine !== asked) return;
    calls = found.rows.reverse().map(([ts_ns, duration_ns, func, seq, comm, bytes, isStep]) =>
      ({ ts_ns: BigInt(ts_ns), duration_ns: Number(duration_ns || 0), func, seq, comm, bytes, isStep }));
    if (!calls.length) {
      $("rank-said").textContent = `It made no recorded calls from ${clock(within.since_ns)} to ${clock(within.until_ns)}.`;
      return;
    }
    const missing = found.coverage.missing.map((gone) => `${gone.node}: ${gone.reason}`).join("; ");
    $("rank-said").textContent = missing ? `PARTIAL: missing ${missing}` : "";
    lay([]);
    byCall();
    const [base, end] = [calls[0].ts_ns, calls[calls.length - 1].ts_ns + BigInt(calls[calls.length - 1].duration_ns)];
    const beside = await Promise.all(BESIDE.map(async ([label, from, what]) => {
      const sql = `SELECT ts_ns, duration_ns, ${what} AS what FROM ${from} WHERE node = :node AND pid = :pid AND ts_ns >= :since AND ts_ns < :until
        AND duration_ns > 0 ORDER BY duration_ns DESC LIMIT 2000`;
      try {
        return [label, (await ask(sql, { ...whose, since: base - 1000000000n, until: end })).rows];
      } catch { return [label, []]; }  // a table that older stores lack
    }));
    if (mine === asked) lay(beside);
  } catch (error) {
    if (mine === asked) $("rank-said").textContent = error.message;
  }
}

/** Lanes of the rank: steps, then what was recorded beside them. */
function lay(beside) {
  const base = calls[0].ts_ns, us = (ns) => Number(BigInt(ns) - base) / 1e3, steps = [], computes = [];
  calls.forEach((call, at) => {
    const from = us(call.ts_ns), to = from + call.duration_ns / 1e3, before = at && us(calls[at - 1].ts_ns) + calls[at - 1].duration_ns / 1e3;
    if (at && before < from) computes.push({ from: before, to: from, kind: "own", text: `computed for ${duration((from - before) * 1e3)} before ${call.func}`, data: call.isStep ? call : null });
    steps.push({ from, to, kind: "call", data: call.isStep ? call : null,
      text: `${timeOfDay(call.ts_ns, 3)} ${call.func}${call.seq === null ? "" : ` #${call.seq}`}: in the call for ${duration(call.duration_ns)}${call.isStep ? "; click for all ranks in it" : ""}` });
  });
  const lanes = [{ label: "compute", spans: computes }, { label: "in calls", spans: steps }];
  for (const [label, rows] of beside) {
    if (rows.length) lanes.push({ label, spans: rows.map(([ts_ns, ns, what]) => ({ from: us(ts_ns), to: us(ts_ns) + Number(ns) / 1e3, kind: "event", text: `${timeOfDay(ts_ns, 3)} ${what}: ${duration(Number(ns))}` })) });
  }
  const first = Math.max(0, calls.length - AT_FIRST), last = calls[calls.length - 1];
  ofRank.show(lanes, [us(calls[first].ts_ns), us(last.ts_ns) + last.duration_ns / 1e3], (at) => timeOfDay(Number(base) + at * 1e3, 3));
}

/** The sums of its calls, which say the same without a picture. */
function byCall() {
  const sums = new Map();
  calls.forEach((call, at) => {
    const sum = sums.get(call.func) || { calls: 0, ns: 0, longest: 0, compute: 0 };
    const compute = at ? Number(call.ts_ns - calls[at - 1].ts_ns) - calls[at - 1].duration_ns : 0;
    sums.set(call.func, { calls: sum.calls + 1, ns: sum.ns + call.duration_ns, longest: Math.max(sum.longest, call.duration_ns), compute: sum.compute + Math.max(0, compute) });
  });
  table($("rank"), ["call", "calls", "mean time in it", "longest", "mean compute before it"],
    [...sums].sort((a, b) => b[1].ns - a[1].ns).map(([func, of]) => [func, of.calls, duration(of.ns / of.calls), duration(of.longest), duration(of.compute / of.calls)]),
    { caption: `Its ${calls.length === CALLS ? "newest " : ""}${calls.length} calls` });
}

/** A step: each rank's compute time and call, who came last on top. */
async function openStep(call) {
  const mine = ++askedStep, title = `${call.func} #${call.seq}`;
  path(jobPart(), [named(rank), () => openRank(rank, span, job)], [title]);
  $("step").hidden = false;
  $("step-title").textContent = `${title} at ${clock(call.ts_ns)}, rank by rank`;
  $("step-said").textContent = "asking all ranks …";
  $("step-words").textContent = "";
  ofStep.show([], null);
  $("step").scrollIntoView({ block: "nearest" });
  try {
    const query = new URLSearchParams({ comm: call.comm, func: call.func, seq: String(call.seq), at_ns: String(call.ts_ns), timeout: "30s" });
    const step = await json(`/api/v1/step?${query}`);
    if (mine !== askedStep) return;
    if (!step.ranks.length) {
      $("step-said").textContent = "No rank's part of it is recorded by the nodes that answered.";
      return;
    }
    const ranks = [...step.ranks].sort((a, b) => (BigInt(a.entry_ns) < BigInt(b.entry_ns) ? 1 : -1));
    const base = BigInt(ranks[ranks.length - 1].entry_ns), us = (ns) => Number(BigInt(ns) - base) / 1e3;
    const late = us(ranks[0].entry_ns), key = (of) => `${of.node} ${of.pid}`, events = new Map();
    for (const seen of step.events) events.set(key(seen), [...(events.get(key(seen)) || []), seen]);
    const lanes = ranks.map((of, at) => {
      const from = us(of.entry_ns), own = Math.max(0, Number(of.own_ns || 0) / 1e3), bound = of.bound_ns === null ? "" : ` ± ${duration(Number(of.bound_ns))}`;
      const data = { rank: of.rank, node: of.node, pid: of.pid };
      const spans = [
        { from: from - own, to: from, kind: "own", data, text: `${named(of)} computed for ${of.own_ns === null ? "a time that is not known" : duration(Number(of.own_ns))}` },
        { from, to: from + Number(of.duration_ns) / 1e3, kind: "call", data, text: `${named(of)} entered ${duration(from * 1e3)}${bound} after the first and was in the call for ${duration(Number(of.duration_ns))}` },
        ...(events.get(key(of)) || []).map((seen) => ({ from: us(seen.at_ns), to: us(seen.at_ns) + Number(seen.duration_ns) / 1e3, kind: "event", data, text: `${named(of)}: ${seen.what}, ${duration(Number(seen.duration_ns))}` })),
      ];
      return { label: named(of), mark: at === 0 && late > 0 && ranks.length > 1, over: true, data, spans };
    });
    const start = ranks.reduce((least, of) => Math.min(least, us(of.entry_ns) - Math.max(0, Number(of.own_ns || 0) / 1e3)), Infinity);
    const end = ranks.reduce((most, of) => Math.max(most, us(of.entry_ns) + Number(of.duration_ns) / 1e3), -Infinity);
    ofStep.show(lanes, [start, end], (at) => duration(at * 1e3));
    const missing = step.coverage.missing.map((gone) => `${gone.node}: ${gone.reason}`).join("; ");
    $("step-words").textContent = [
      `${named(ranks[0])[0].toUpperCase()}${named(ranks[0]).slice(1)} entered last, ${duration(late * 1e3)} after the first of ${ranks.length} ranks.`,
      step.by_ends ? "Clocks of its hosts are not known: they are set so that all ranks leave it together." : "",
      missing ? `PARTIAL: missing ${missing}` : "",
    ].filter(Boolean).join(" ");
    $("step-said").textContent = "";
  } catch (error) {
    if (mine === askedStep) $("step-said").textContent = error.message;
  }
}

let stackOf = null;
const words = (step) => {
  if (typeof step === "string") return { OuterMissing: "… (callers are not known)", InnerMissing: "… (it ran while it was read)", NoFunction: "no function that could be read" }[step] || step;
  const frame = step.Function || step, of = frame.Python || frame.Native;
  if (!of) return "(a return probe hides the callers)";
  return frame.Python ? `${of.function}  ${of.file}${of.line === null ? "" : `:${of.line}`}` : `${of.function}  [${of.module}]`;
};

/** Frames as a list, the outermost first. */
function frames(title, steps) {
  const part = element("div", undefined, "stack"), list = element("ol");
  part.append(element("p", title));
  for (const step of steps) list.append(element("li", words(step)));
  part.append(list);
  return part;
}

/** Where the rank is at this moment. */
async function stackNow() {
  const place = $("stack");
  stackOf = `${rank.node} ${rank.pid}`;
  place.replaceChildren(element("p", "reading its stack …", "soft"));
  try {
    const query = new URLSearchParams({ ranks: String(rank.rank), nodes: rank.node, samples: "10", every: "20ms" });
    if (job) query.set("job", job);
    const answer = await json(`/api/v1/stacks?${query}`);
    const found = answer.merged.classes.map((of) => frames(`${of.samples} of ${of.of_samples} samples:`, of.path));
    const unread = answer.unread.map((of) => element("p", `process ${of.pid} on ${of.node}: no stack: ${of.reason}`, "soft"));
    const missing = answer.coverage.missing.map((gone) => element("p", `missing ${gone.node}: ${gone.reason}`, "partial"));
    place.replaceChildren(...(found.length ? found : [element("p", "no stack was read", "soft")]), ...unread, ...missing);
  } catch (error) {
    place.replaceChildren(element("p", `no stack: ${error.message}`, "soft"));
  }
}

/** Where it was when verdicts changed. */
async function stacksThen() {
  const place = $("stack");
  stackOf = `${rank.node} ${rank.pid}`;
  place.replaceChildren(element("p", "asking …", "soft"));
  try {
    const sql = "SELECT ts_ns, kind, samples, count, frames FROM stacks WHERE node = :node AND pid = :pid AND ts_ns >= :since AND ts_ns < :until ORDER BY ts_ns DESC, count DESC LIMIT 50";
    const { rows } = await ask(sql, { node: rank.node, pid: rank.pid, since: span.since_ns, until: span.until_ns });
    const read = (text) => { try { return JSON.parse(text); } catch { return []; } };
    place.replaceChildren(...(rows.length
      ? rows.map(([ts_ns, kind, samples, count, kept]) => frames(`${clock(ts_ns)}, ${kind}: ${count} of ${samples} samples:`, read(kept)))
      : [element("p", "No stack of it was kept in this time: they are when a standing verdict changes.", "soft")]));
  } catch (error) {
    place.replaceChildren(element("p", error.message, "soft"));
  }
}

$("stack-now").addEventListener("click", stackNow);
$("stack-then").addEventListener("click", stacksThen);
