// The SQL console: history, completion, plans, charts, files.
"use strict";

import { Problem, exact, json, question } from "./api.js";
import { chart } from "./chart.js";
import { open as openSaved, timeChanged } from "./saved.js";
import { element, table } from "./table.js";

const $ = (id) => document.getElementById(id);
const KEPT = "rankmesh-history", MOST = 50, SHOWN = 20000;
let words = [], last = null, running = null, choices = [], chosen = -1;

const kept = () => {
  try { return JSON.parse(localStorage.getItem(KEPT)) || []; } catch { return []; }
};

function remember(text) {
  const all = [text, ...kept().filter((known) => known !== text)].slice(0, MOST);
  localStorage.setItem(KEPT, JSON.stringify(all));
  listed();
}

function listed() {
  $("history").replaceChildren(...kept().map((text) => {
    const line = element("li"), button = element("button", text);
    button.type = "button";
    button.addEventListener("click", () => { $("question").value = text; $("question").focus(); });
    line.append(button);
    return line;
  }));
}

/** Who is in an answer, in words. */
function covered(coverage, elapsed) {
  const place = $("coverage");
  const whole = !coverage || !coverage.missing.length;
  place.className = whole ? "soft" : "partial";
  const missing = (coverage ? coverage.missing : []).map((gone) => `${gone.node}: ${gone.reason}`).join("; ");
  const notes = (coverage ? coverage.notes : []).join("; ");
  place.textContent = coverage
    ? `${whole ? "" : "PARTIAL: "}${coverage.answered} of ${coverage.asked} nodes answered` +
      `${elapsed === undefined ? "" : ` in ${elapsed.toFixed(1)} ms`}${missing ? `; missing ${missing}` : ""}${notes ? `; ${notes}` : ""}`
    : "";
}

const parameters = () => {
  const given = { timeout: $("timeout").value.trim() || "10s" };
  if ($("require-all").checked) given.require_all = "true";
  return given;
};

/** What the editor holds; `:since` and `:until` are the page's time. */
function typed(span) {
  const sql = $("question").value.trim(), parameters = {};
  for (const name of ["since", "until"]) {
    if (new RegExp(`(^|[^:\\w]):${name}\\b`).test(sql)) parameters[name] = span()[`${name}_ns`];
  }
  return { sql, parameters };
}

async function ask(body, more) {
  if (body.sql === "") return;
  if (running) running.abort();
  const mine = running = new AbortController();
  if (body.sql) remember(body.sql);
  $("stop").hidden = false;
  $("coverage").textContent = "asking …";
  $("answer").replaceChildren();
  $("planned").textContent = "";
  $("chart").replaceChildren();
  $("save").hidden = true;
  try {
    const answer = await question(body, { ...parameters(), ...more }, { signal: mine.signal });
    if (more && more.explain) {
      $("planned").textContent = await answer.text();
      covered(null);
      return;
    }
    const found = exact(await answer.text());
    last = { body, columns: found.columns.map((column) => column.name), rows: found.rows };
    covered(found.coverage, found.elapsed_ms);
    table($("answer"), last.columns, last.rows.slice(0, SHOWN),
      { caption: found.rows.length > SHOWN ? `the first ${SHOWN} of ${found.rows.length} rows` : undefined });
    $("save").hidden = false;
    chart($("chart"), $("chart-kind").value, last.columns, last.rows);
  } catch (error) {
    covered(error instanceof Problem ? error.coverage : null);
    $("planned").textContent = error.name === "AbortError" ? "stopped" : error.message;
    if (!$("coverage").textContent) $("coverage").className = "partial";
  } finally {
    if (running === mine) {
      running = null;
      $("stop").hidden = true;
    }
  }
}

async function save(format) {
  try {
    const answer = await question(last.body, { ...parameters(), format });
    const link = element("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `rankmesh.${format === "arrow" ? "arrows" : format}`;
    link.click();
    URL.revokeObjectURL(link.href);
  } catch (error) {
    $("planned").textContent = error.message;
  }
}

/** The word before the cursor, and what it may become. */
function complete() {
  const box = $("question"), before = box.value.slice(0, box.selectionStart);
  const word = /[A-Za-z_][A-Za-z0-9_]*$/.exec(before);
  choices = word ? words.filter((known) => known.toLowerCase().startsWith(word[0].toLowerCase()) && known !== word[0]).slice(0, 8) : [];
  chosen = -1;
  $("complete").textContent = choices.length ? `Tab: ${choices.join(", ")}` : "";
}

function completed(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    $("ask").requestSubmit();
  } else if (event.key === "Tab" && choices.length && !event.shiftKey) {
    event.preventDefault();
    const box = event.target, at = box.selectionStart, before = box.value.slice(0, at);
    chosen = (chosen + 1) % choices.length;
    const begun = before.replace(/[A-Za-z_][A-Za-z0-9_]*$/, "");
    box.value = begun + choices[chosen] + box.value.slice(at);
    box.selectionStart = box.selectionEnd = (begun + choices[chosen]).length;
  }
}

/** The page's time changed. */
export { timeChanged };

/** Wires it up; tables are asked for once. `time` is the page's: `span()` in nanoseconds, `given` as requests take it. */
export async function open(time) {
  const span = () => time.span();
  $("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(typed(span)); });
  $("plan").addEventListener("click", () => ask(typed(span), { explain: "plan" }));
  openSaved((body) => ask(body), (text) => { $("question").value = text; $("question").focus(); }, () => time.given);
  $("stop").addEventListener("click", () => running && running.abort());
  $("question").addEventListener("keydown", completed);
  $("question").addEventListener("input", complete);
  $("chart-kind").addEventListener("change", () => last && chart($("chart"), $("chart-kind").value, last.columns, last.rows));
  for (const button of document.querySelectorAll("#save button")) button.addEventListener("click", () => save(button.dataset.format));
  listed();
  try {
    const tables = await json("/api/v1/schema");
    const keywords = ["SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "count(*)", "node"];
    words = [...new Set([...keywords, ...tables.flatMap((of) => [of.name, ...of.columns.map((column) => column.name)])])];
    $("schema").replaceChildren(...tables.map((of) => {
      const part = element("details"), columns = element("div");
      part.append(element("summary", `${of.name}: ${(of.about || "of the mesh").split(". ")[0].replaceAll("`", "")}`), columns);
      part.addEventListener("toggle", () => table(columns, ["column", "type", "meaning"], of.columns.map((column) => [column.name, column.type, column.meaning]), { caption: of.name }), { once: true });
      return part;
    }));
  } catch (error) {
    $("schema").textContent = error.message;
  }
}
