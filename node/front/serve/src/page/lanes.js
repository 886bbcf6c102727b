// Lanes: one a row, spans of time on each. Drawn on a canvas, only what is in sight; times are
// microseconds after a base, since numbers here hold no nanoseconds since 1970.
"use strict";

import { duration } from "./table.js";

const HIGH = 22, LEFT = 150, AXIS = 20;

export class Lanes {
  /** `tell(text)` says what is under the pointer, `pick(span)` what was clicked. */
  constructor(frame, canvas, tell, pick) {
    Object.assign(this, { frame, canvas, tell, pick, lanes: [], all: [0, 1], view: [0, 1], top: 0 });
    let from = null, moved = false;
    frame.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; moved = false; frame.setPointerCapture(event.pointerId); });
    frame.addEventListener("pointermove", (event) => {
      if (from) {
        const [dx, dy] = [from[0] - event.clientX, from[1] - event.clientY];
        moved ||= Math.abs(dx) + Math.abs(dy) > 2;
        this.move(dx, dy);
        from = [event.clientX, event.clientY];
      }
      const found = this.under(event);
      this.tell(found ? found.text : "");
    });
    frame.addEventListener("pointerup", (event) => {
      from = null;
      const found = this.under(event);
      if (!moved && found && this.pick) this.pick(found);
    });
    frame.addEventListener("wheel", (event) => {
      const canScroll = this.lanes.length * HIGH > this.room();
      if (!event.ctrlKey && !event.shiftKey && !canScroll) return;
      event.preventDefault();
      if (event.ctrlKey || event.shiftKey) this.zoom((event.deltaY || event.deltaX) < 0 ? 1.25 : 0.8);
      else this.move(event.deltaX, event.deltaY);
    }, { passive: false });
    frame.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [-60, 0], ArrowRight: [60, 0], ArrowUp: [0, -HIGH], ArrowDown: [0, HIGH] };
      if (steps[event.key]) this.move(...steps[event.key]);
      else if (event.key === "+") this.zoom(1.5);
      else if (event.key === "-") this.zoom(1 / 1.5);
      else if (event.key === "Home") { this.view = [...this.all]; this.redraw(); } else return;
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /**
   * Shows lanes: `{label, mark, spans: [{from, to, kind, text, data}]}`, times in microseconds after
   * a base; `kind` is `own`, `call`, `event` or `bad`. `name(us)` is the axis' words.
   */
  show(lanes, view, name) {
    let [first, last] = [Infinity, -Infinity];
    for (const { spans } of lanes) for (const { from, to } of spans) [first, last] = [Math.min(first, from), Math.max(last, to)];
    if (!(first < last)) [first, last] = [0, 1];
    Object.assign(this, { lanes, all: [first, last], view: view || [first, last], top: 0, name });
    this.canvas.style.height = `${Math.min(460, lanes.length * HIGH + AXIS)}px`;
    this.redraw();
  }

  room() { return this.canvas.clientHeight - AXIS; }

  draw() {
    const ratio = window.devicePixelRatio || 1, { canvas } = this, wide = canvas.clientWidth, high = canvas.clientHeight;
    if (!wide || !high) return;
    Object.assign(canvas, { width: Math.round(wide * ratio), height: Math.round(high * ratio) });
    const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries([["own", "--own"], ["call", "--call"], ["event", "--event"], ["bad", "--bad"], ["ink", "--ink"], ["soft", "--soft"], ["line", "--line"]]
      .map(([name, variable]) => [name, style.getPropertyValue(variable).trim()]));
    context.scale(ratio, ratio);
    context.clearRect(0, 0, wide, high);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const [from, to] = this.view, scale = (wide - LEFT) / (to - from || 1), x = (us) => LEFT + (us - from) * scale;
    const first = Math.max(0, Math.floor(this.top / HIGH)), last = Math.min(this.lanes.length, Math.ceil((this.top + this.room()) / HIGH));
    for (let at = first; at < last; at++) {
      const lane = this.lanes[at], y = at * HIGH - this.top;
      context.save();
      context.beginPath();
      context.rect(LEFT, Math.max(0, y), wide - LEFT, Math.min(HIGH, this.room() - y));
      context.clip();
      for (const span of lane.spans) {
        const [a, b] = [x(span.from), x(span.to)];
        if (b < LEFT || a > wide) continue;
        context.fillStyle = colours[span.kind];
        context.globalAlpha = lane.mark && span.kind === "own" ? 0.7 : 1;
        if (lane.mark && span.kind === "own") context.fillStyle = colours.bad;
        context.fillRect(a, y + (span.kind === "event" && lane.over ? HIGH - 8 : 3), Math.max(1, b - a), span.kind === "event" && lane.over ? 5 : HIGH - 6);
      }
      context.restore();
      context.fillStyle = lane.mark ? colours.bad : colours.ink;
      context.textAlign = "right";
      context.fillText(lane.label, LEFT - 8, y + HIGH / 2, LEFT - 12);
    }
    context.clearRect(0, this.room(), wide, AXIS);
    context.strokeStyle = colours.line;
    context.strokeRect(LEFT + 0.5, 0.5, wide - LEFT - 1, this.room() - 1);
    context.fillStyle = colours.soft;
    const ticks = Math.max(2, Math.floor((wide - LEFT) / 160));
    for (let tick = 0; tick <= ticks; tick++) {
      context.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
      const us = from + ((to - from) * tick) / ticks;
      context.fillText(this.name ? this.name(us) : duration(us * 1e3), x(us), high - AXIS / 2);
    }
  }

  redraw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => { this.asked = null; this.draw(); });
  }

  move(dx, dy) {
    const [from, to] = this.view, by = (dx * (to - from)) / Math.max(1, this.canvas.clientWidth - LEFT);
    this.view = [from + by, to + by];
    this.top = Math.max(0, Math.min(this.lanes.length * HIGH - this.room(), this.top + dy));
    this.redraw();
  }

  zoom(by) {
    const [from, to] = this.view, middle = (from + to) / 2, half = (to - from) / 2 / by;
    this.view = [middle - half, middle + half];
    this.redraw();
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect(), lane = this.lanes[Math.floor((event.clientY - box.top + this.top) / HIGH)];
    if (!lane || event.clientY - box.top > this.room()) return null;
    const [from, to] = this.view, us = from + ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * (to - from);
    const near = (4 * (to - from)) / (box.width - LEFT);
    return lane.spans.findLast((span) => span.from - near <= us && us <= span.to + near) || (lane.data ? { text: lane.label, data: lane.data } : null);
  }
}
