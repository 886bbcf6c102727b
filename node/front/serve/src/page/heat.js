// Ranks over time: a row a rank, worst first, a column a window. Values are kept as flat arrays, one
// pixel each in an image that is made when values change; moving and zooming only draws that image.
"use strict";

import { duration } from "./table.js";
import { clock, timeOfDay } from "./time.js";

/** Windows that are shown: as many as judges keep. */
const MOST_WINDOWS = 1200;

/** What the colour of a figure says of a rank. */
const MEANS = { late: "entered late by", held: "waited less than others by", wait: "waited for", compute: "computed for" };

/** 256 colours of the style, as pixels. */
function palette() {
  const style = getComputedStyle(document.documentElement), colours = new Uint32Array(256), bytes = new Uint8Array(colours.buffer);
  const [low, middle, high] = ["--low", "--mid", "--high"].map((name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  });
  for (let at = 0; at < 256; at++) {
    const [a, b, t] = at < 128 ? [low, middle, at / 127] : [middle, high, (at - 128) / 127];
    bytes.set([0, 1, 2].map((i) => Math.round(a[i] + (b[i] - a[i]) * t)).concat(255), 4 * at);
  }
  return colours;
}

/** By how much the others waited longer, their median, as in reports: who holds others up waits least, which needs no clock. */
function held(waits) {
  const known = waits.filter((us) => us >= 0).sort(), median = known.length ? known[known.length >> 1] : 0;
  return waits.map((us) => Math.max(0, median - us));
}

export class Heat {
  constructor(frame, canvas, labels, tell, pick) {
    Object.assign(this, { frame, canvas, labels, tell, pick, ranks: [], order: [], windows: [], metric: "late", epoch: null });
    this.view = { x: 0, y: 0, scale: 1 };
    this.image = document.createElement("canvas");
    let from = null, moved = false;
    frame.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; moved = false; frame.setPointerCapture(event.pointerId); });
    frame.addEventListener("pointermove", (event) => {
      if (from) {
        this.move(from[0] - event.clientX, from[1] - event.clientY);
        moved ||= Math.abs(from[0] - event.clientX) + Math.abs(from[1] - event.clientY) > 2;
        from = [event.clientX, event.clientY];
      }
      this.at = this.cell(event);
      this.say();
    });
    frame.addEventListener("pointerup", () => {
      from = null;
      if (!moved && this.at) this.pick(this.ranks[this.order[this.at[0]]]);
    });
    frame.addEventListener("wheel", (event) => { event.preventDefault(); this.zoom(event.deltaY < 0 ? 1.25 : 0.8); }, { passive: false });
    frame.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [-40, 0], ArrowRight: [40, 0], ArrowUp: [0, -40], ArrowDown: [0, 40] };
      if (steps[event.key]) this.move(...steps[event.key]);
      else if (event.key === "+") this.zoom(1.25);
      else if (event.key === "-") this.zoom(0.8);
      else return;
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  /** Forgets all: another job or time is shown. */
  clear() {
    Object.assign(this, { ranks: [], order: [], windows: [], epoch: null, at: null });
    Object.assign(this.image, { width: 0, height: 0 });
    this.view = { x: 0, y: 0, scale: 1 };
    this.draw();
  }

  /** What the judge has that is not known here. */
  known() {
    return this.epoch === null ? null : `${this.epoch},${this.ranks.length}`;
  }

  /** Takes a board, or what is new of it. */
  take(board, epoch) {
    const anew = epoch !== this.epoch;
    if (anew) Object.assign(this, { epoch, ranks: [], windows: [] });
    if (board.ranks.length) this.ranks.splice(board.first_rank, this.ranks.length, ...board.ranks);
    const last = this.windows.length ? this.windows[this.windows.length - 1].end_ns : -Infinity;
    const kept = (cells) => Float32Array.from(cells, (us) => (us === null ? NaN : us));
    let more = 0;
    for (const { end_ns, late, wait, compute } of board.windows) {
      if (end_ns <= last) continue;
      const waits = kept(wait);
      this.windows.push({ end_ns, late: kept(late), wait: waits, held: held(waits), compute: kept(compute) });
      more++;
    }
    this.windows.splice(0, Math.max(0, this.windows.length - MOST_WINDOWS));
    this.window_ns = board.window_ns;
    if (!this.chosen) this.metric = board.clock_bound_ns === null ? "held" : "late";
    if (anew || more || board.ranks.length) this.paint();
  }

  /** Somebody chose a figure. */
  choose(metric) { Object.assign(this, { metric, chosen: true }); this.paint(); }

  paint() {
    const rows = this.ranks.length, columns = this.windows.length;
    if (!rows || !columns) return;
    const sums = new Float64Array(rows);
    // Worst first by who comes last, whichever figure is shown.
    const by = this.metric === "held" || this.metric === "wait" ? "held" : this.metric;
    for (const { [by]: cells } of this.windows) {
      for (let row = 0; row < cells.length; row++) if (cells[row] > 0) sums[row] += cells[row];
    }
    this.order = [...sums.keys()].sort((a, b) => sums[b] - sums[a] || this.ranks[a].rank - this.ranks[b].rank);
    const [low, high] = this.range();
    const colours = palette();
    Object.assign(this.image, { width: columns, height: rows });
    const context = this.image.getContext("2d"), pixels = context.createImageData(columns, rows);
    const colour = new Uint32Array(pixels.data.buffer), scale = (colours.length - 1) / (high - low || 1);
    this.windows.forEach((window, column) => {
      const cells = window[this.metric];
      for (let row = 0; row < rows; row++) {
        const us = cells[this.order[row]];
        // Not known: the frame's own colour.
        if (us >= 0) colour[row * columns + column] = colours[Math.max(0, Math.min(colours.length - 1, Math.round((us - low) * scale)))];
      }
    });
    context.putImageData(pixels, 0, 0);
    this.scale = [low, high];
    this.draw();
  }

  /** From where to where colours go: of some thousands of the cells, but for the last thousandth. */
  range() {
    const all = this.windows.length * this.ranks.length, step = Math.max(1, Math.floor(all / 50021)), sample = [];
    for (let at = 0; at < all; at += step) {
      const us = this.windows[Math.floor(at / this.ranks.length)][this.metric][at % this.ranks.length];
      if (us >= 0) sample.push(us);
    }
    const sorted = Float32Array.from(sample).sort(), at = (part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] || 0;
    return [this.metric === "compute" ? at(0.01) : 0, at(0.999) || 1];
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, { canvas, image } = this;
    const wide = Math.max(1, Math.round(canvas.clientWidth * ratio)), high = Math.max(1, Math.round(canvas.clientHeight * ratio));
    if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, wide, high);
    if (!image.width || !this.ranks.length) return;
    const { x, y, scale } = this.view;
    this.axis();
    context.drawImage(image, x * image.width, y * image.height, image.width / scale, image.height / scale, 0, 0, wide, high);
    this.name();
  }

  /** Who each row is, as far as there is room for text. */
  name() {
    const ratio = window.devicePixelRatio || 1, { labels, order, ranks } = this, { y, scale } = this.view;
    const wide = Math.max(1, Math.round(labels.clientWidth * ratio)), high = Math.max(1, Math.round(labels.clientHeight * ratio));
    Object.assign(labels, { width: wide, height: high });
    const context = labels.getContext("2d"), row = high * scale / order.length, every = Math.max(1, Math.ceil(15 * ratio / row));
    const style = getComputedStyle(document.documentElement);
    Object.assign(context, { font: `${12 * ratio}px system-ui, sans-serif`, fillStyle: style.getPropertyValue("--ink"), textAlign: "right", textBaseline: "middle" });
    const first = Math.floor(y * order.length);
    this.shownNames = [];
    for (let at = first - (first % every); at < order.length; at += every) {
      const middle = (at + 0.5) * row - y * high * scale, rank = ranks[order[at]];
      if (middle < 0 || middle > high) continue;
      const name = `${rank.rank} ${rank.node}`;
      this.shownNames.push(name);
      context.fillText(name, wide - 5 * ratio, middle, wide - 8 * ratio);
    }
  }

  /** The time that is in sight, and what colours mean. */
  axis() {
    const { x, scale } = this.view, last = this.windows.length - 1, at = (part) => this.windows[Math.max(0, Math.min(last, Math.floor(part * (last + 1))))].end_ns;
    const [low, high] = this.scale, end = `${duration(high * 1e3)} in a window of ${duration(this.window_ns)}; without colour: not known`;
    const said = [clock(at(x)), timeOfDay(at(x + 1 / scale - 1e-9)), `Colour: ${MEANS[this.metric]} ${duration(low * 1e3)}`, end];
    if (String(this.said) === String(said)) return;
    this.said = said;
    const words = this.frame.nextElementSibling, legend = words.nextElementSibling;
    [...words.children, legend.children[0], legend.children[2]].forEach((place, part) => { place.textContent = said[part]; });
  }

  redraw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => { this.asked = null; this.draw(); });
  }

  move(dx, dy) {
    const most = 1 - 1 / this.view.scale, bounded = (part) => Math.max(0, Math.min(most, part));
    this.view.x = bounded(this.view.x + dx / this.canvas.clientWidth / this.view.scale);
    this.view.y = bounded(this.view.y + dy / this.canvas.clientHeight / this.view.scale);
    this.redraw();
  }

  zoom(by) {
    const before = this.view.scale, scale = Math.max(1, Math.min(64, before * by));
    const middle = (1 / before - 1 / scale) / 2;
    Object.assign(this.view, { scale, x: this.view.x + middle, y: this.view.y + middle });
    this.move(0, 0);
  }

  cell(event) {
    const box = this.canvas.getBoundingClientRect(), { x, y, scale } = this.view;
    const column = Math.floor((x + (event.clientX - box.left) / box.width / scale) * this.windows.length);
    const row = Math.floor((y + (event.clientY - box.top) / box.height / scale) * this.ranks.length);
    return this.windows[column] && this.order[row] !== undefined ? [row, column] : null;
  }

  say() {
    if (!this.at) return;
    const place = this.order[this.at[0]], rank = this.ranks[place], window = this.windows[this.at[1]];
    if (!rank || !window) return;
    const part = (name, words) => `${words} ${window[name][place] >= 0 ? duration(1e3 * window[name][place]) : "not known"}`;
    this.tell(`${timeOfDay(window.end_ns, 1)}, rank ${rank.rank} on ${rank.node}: ` +
      [part("late", "late by"), part("held", "waited less than others by"), part("wait", "waited"), part("compute", "computed")].join(", "));
  }
}
