// The nodes as a map: a tile each, in the colour of its state; who is named stands out. A canvas, so
// that a thousand of them cost no more than ten.
"use strict";

import { duration } from "./table.js";

/** Sizes of tiles: the largest with which all fit. */
const SIZES = [[150, 54], [96, 40], [56, 30], [34, 24], [20, 18], [12, 12]];
/** Bounds of clocks between which the bar grows, nanoseconds. */
const BOUND_NS = [1e3, 1e8];
const MOST_HIGH = 480;

const byName = new Intl.Collator("en", { numeric: true }).compare;

export class NodeMap {
  constructor(frame, canvas, tell, pick) {
    Object.assign(this, { frame, canvas, tell, pick, nodes: [], at: null });
    frame.addEventListener("pointermove", (event) => this.choose(this.under(event)));
    frame.addEventListener("click", (event) => { const at = this.under(event); if (at !== null) { this.choose(at); this.pick(this.nodes[at]); } });
    frame.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
      if (step) this.choose(Math.max(0, Math.min(this.nodes.length - 1, (this.at ?? -1) + step)));
      else if (event.key === "Enter" && this.nodes[this.at]) this.pick(this.nodes[this.at]);
      else return;
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** What stands: nodes, who is missing, who is named. */
  show(watched) {
    this.ofStores = watched.agent === "";
    const missing = new Map(watched.coverage.missing.map((gone) => [gone.node, gone.reason])), named = new Map();
    for (const job of watched.jobs) {
      if (job.is_ill) for (const culprit of job.culprits) named.set(culprit.node, [...(named.get(culprit.node) || []), `rank ${culprit.rank}${job.id ? ` of job ${job.id}` : ""}`]);
    }
    // Of stores only the verdict knows who ran where.
    const ran = new Map();
    for (const rank of watched.ranks) ran.set(rank.node, [...(ran.get(rank.node) || []), rank.rank]);
    const known = watched.nodes.map((node) => ({ ...node, ranks: node.ranks.length ? node.ranks : (ran.get(node.name) || []).sort((a, b) => a - b), missing: missing.get(node.name), named: named.get(node.name) }));
    const unknown = [...missing].filter(([name]) => !watched.nodes.some((node) => node.name === name))
      .map(([name, reason]) => ({ name, state: "missing", recording: "", ranks: [], missing: reason, clock_bound_ns: null, named: named.get(name) }));
    this.nodes = [...known, ...unknown].sort((a, b) => byName(a.name, b.name));
    this.frame.setAttribute("aria-label", `${this.nodes.length} nodes: ${this.summary()}. Arrow keys go from node to node.`);
    this.draw();
  }

  kind(node) {
    if (node.named) return "named";
    if (node.state === "dead" || node.missing) return "gone";
    return this.ofStores || (node.state === "live" && node.recording.startsWith("on")) ? "well" : "doubt";
  }

  summary() {
    const counts = { named: 0, gone: 0, doubt: 0, well: 0 };
    for (const node of this.nodes) counts[this.kind(node)]++;
    const words = { named: "with a rank that holds others up", gone: "dead or missing", doubt: "not recording", well: "well" };
    return Object.entries(counts).filter(([, count]) => count).map(([kind, count]) => `${count} ${words[kind]}`).join(", ");
  }

  draw() {
    const wide = this.frame.clientWidth, count = this.nodes.length;
    if (!wide || !count) return;
    const fits = ([w, h]) => Math.ceil(count / Math.max(1, Math.floor(wide / w))) * h <= MOST_HIGH;
    const [w, h] = this.size = SIZES.find(fits) || SIZES[SIZES.length - 1];
    this.columns = Math.max(1, Math.floor(wide / w));
    const ratio = window.devicePixelRatio || 1, high = Math.ceil(count / this.columns) * h, { canvas } = this;
    canvas.style.height = `${high}px`;
    Object.assign(canvas, { width: Math.round(wide * ratio), height: Math.round(high * ratio) });
    const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const fills = { well: colour("--own"), doubt: colour("--event"), gone: colour("--tint"), named: colour("--bad") };
    const [ink, paper, soft] = ["--ink", "--paper", "--soft"].map(colour);
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "top";
    this.nodes.forEach((node, at) => {
      const x = (at % this.columns) * w, y = Math.floor(at / this.columns) * h, kind = this.kind(node);
      const [iw, ih] = [w - 2, h - 2];
      context.fillStyle = fills[kind];
      context.fillRect(x + 1, y + 1, iw, ih);
      if (kind === "gone") {
        // Not by colour alone: an empty, crossed tile.
        context.strokeStyle = soft;
        context.strokeRect(x + 1.5, y + 1.5, iw - 1, ih - 1);
        context.beginPath();
        context.moveTo(x + 1, y + ih + 1);
        context.lineTo(x + iw + 1, y + 1);
        context.stroke();
      }
      if (w >= 56) {
        context.fillStyle = kind === "named" ? paper : kind === "gone" ? soft : ink;
        context.fillText(node.name, x + 5, y + 5, iw - 8);
        const said = node.named ? node.named.join(", ") : node.missing ? "missing" : node.state === "dead" ? "dead" : `${node.ranks.length} ranks`;
        if (h >= 40) context.fillText(said, x + 5, y + 20, iw - 8);
      }
      if (node.clock_bound_ns !== null && node.clock_bound_ns !== undefined && kind !== "gone" && h >= 18) {
        const part = Math.log(Math.max(BOUND_NS[0], node.clock_bound_ns) / BOUND_NS[0]) / Math.log(BOUND_NS[1] / BOUND_NS[0]);
        context.fillStyle = kind === "named" ? paper : ink;
        context.fillRect(x + 3, y + h - 5, Math.max(1, Math.min(1, part) * (iw - 4)), 2);
      }
      if (at === this.at) {
        context.lineWidth = 2;
        context.strokeStyle = ink;
        context.strokeRect(x + 1, y + 1, iw, ih);
        context.lineWidth = 1;
      }
    });
  }

  choose(at) {
    if (at === this.at) return;
    this.at = at;
    this.draw();
    const node = this.nodes[at];
    this.tell(node ? this.words(node) : "");
  }

  words(node) {
    return [node.name, node.state, node.missing ? `missing: ${node.missing}` : "", node.named ? `holds others up: ${node.named.join(", ")}` : "",
      node.recording ? `recording ${node.recording}` : "", node.ranks.length ? `ranks ${node.ranks.slice(0, 16).join(", ")}${node.ranks.length > 16 ? ", …" : ""}` : "no ranks",
      `clock ${node.clock_bound_ns === null || node.clock_bound_ns === undefined ? "not known" : `within ${duration(node.clock_bound_ns)}`}`].filter(Boolean).join(" · ");
  }

  under(event) {
    if (!this.size) return null;
    const box = this.canvas.getBoundingClientRect(), [w, h] = this.size;
    const column = Math.floor((event.clientX - box.left) / w), at = Math.floor((event.clientY - box.top) / h) * this.columns + column;
    return column < this.columns && this.nodes[at] ? at : null;
  }
}
