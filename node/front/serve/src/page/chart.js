// A result as a chart: lines and bars by the vendored uPlot, heat on a canvas of its own.
"use strict";

import { element, valueText } from "./table.js";

const MOST_SERIES = 40;

/** A value as a number; integers beyond 2^53 came as text. */
const number = (value) => (typeof value === "string" && /^-?\d{16,19}$/.test(value) ? Number(value) : typeof value === "number" ? value : null);

/** Columns that are numbers. */
const numbers = (columns, rows) => columns.map((_, at) => at).filter((at) => rows.some((row) => number(row[at]) !== null));

/** Draws rows into `place`; says in words why it cannot. */
export function chart(place, kind, columns, given) {
  place.replaceChildren();
  if (!kind) return;
  const of = numbers(columns, given);
  const rows = given.map((row) => row.map((value, at) => (of.includes(at) ? number(value) : value)));
  const lacking = kind === "heat" ? of.length < 3 && "a heat map needs three columns of numbers: x, y and a value"
    : of.length < 2 && columns.length < 2 && "a chart needs a column for x and one of numbers";
  if (lacking || !of.length) {
    place.append(element("p", lacking || "there are no numbers in it", "soft"));
    return;
  }
  if (kind === "heat") return heat(place, of.slice(0, 3), columns, rows);
  // The first column is x: a number, or names one after the other.
  const named = !of.includes(0), ys = of.filter((at) => at !== 0 || (named && of.length === 1)).slice(0, MOST_SERIES);
  const sorted = named ? rows : [...rows].sort((a, b) => a[0] - b[0]);
  const xs = sorted.map((row, at) => (named ? at : row[0]));
  const data = [xs, ...ys.map((at) => sorted.map((row) => (typeof row[at] === "number" ? row[at] : null)))];
  const colour = (at) => `hsl(${(at * 67 + 210) % 360} 60% 50%)`;
  const time = !named && xs.length && xs[0] > 1e17;
  if (time) data[0] = xs.map((ns) => ns / 1e9);
  const bars = kind === "bar" ? { paths: window.uPlot.paths.bars({ size: [0.8, 60] }) } : {};
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, ticks: { stroke: ink } };
  const names = named ? { values: (_, at) => at.map((x) => (Number.isInteger(x) && sorted[x] ? valueText(sorted[x][0]) : "")) } : {};
  new window.uPlot({
    width: Math.max(300, place.clientWidth), height: 320, scales: { x: { time: Boolean(time) } }, axes: [{ ...axis, ...names }, axis],
    series: [{ label: columns[0] }, ...ys.map((at, index) => ({ label: columns[at], stroke: colour(index), fill: kind === "bar" ? colour(index) : undefined, ...bars }))],
  }, data, place);
}

function heat(place, [x, y, value], columns, rows) {
  const steps = (at) => [...new Set(rows.map((row) => row[at]))].filter((step) => step !== null).sort((a, b) => a - b);
  const xs = steps(x), ys = steps(y);
  if (xs.length > 4000 || ys.length > 4000) {
    place.append(element("p", "more than 4000 steps: group them in the question", "soft"));
    return;
  }
  const across = new Map(xs.map((step, at) => [step, at])), down = new Map(ys.map((step, at) => [step, at]));
  const canvas = element("canvas"), context = canvas.getContext("2d");
  Object.assign(canvas, { width: xs.length, height: ys.length });
  Object.assign(canvas.style, { width: "100%", height: "320px", imageRendering: "pixelated" });
  let [low, high] = [Infinity, -Infinity];
  for (const row of rows) if (typeof row[value] === "number") [low, high] = [Math.min(low, row[value]), Math.max(high, row[value])];
  for (const row of rows) {
    if (typeof row[value] !== "number" || !across.has(row[x]) || !down.has(row[y])) continue;
    const part = (row[value] - low) / (high - low || 1);
    context.fillStyle = `hsl(${40 - 40 * part} ${40 + 50 * part}% ${90 - 55 * part}%)`;
    context.fillRect(across.get(row[x]), down.get(row[y]), 1, 1);
  }
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${columns[value]} by ${columns[x]} and ${columns[y]}`);
  place.append(element("p", `${columns[value]} from ${low} (light) to ${high} (dark), ${columns[x]} across, ${columns[y]} down`, "soft"), canvas);
}
