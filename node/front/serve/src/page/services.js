// Services: how long requests take on each host, what the slowest wait for more than ordinary ones, and
// some of these as chains: who did what, then who. Asked for when it is looked at.
"use strict";

import { json } from "./api.js";
import { duration, element, table } from "./table.js";
import { clock } from "./time.js";

const $ = (id) => document.getElementById(id);
/** Colours of what was done, as in the lanes of ranks. */
const KEYS = { on_cpu: "own", asleep: "call", unread: "event", cpu_taken: "culprit", throttled: "culprit", unknown: "gone" };
/** What is live is asked for anew when it is looked at again after so long. */
const OLD_MS = 10000;
/** Parts and links below this share are left out. */
const LEAST = 0.02;

const percent = (share) => `${Math.round(share * 100)} %`;
const time = (ns) => (ns === null ? "" : duration(ns));
const names = ["requests", "failed", "p50", "p90", "p99", "p99.9", "longest"];
const figures = (of) => [of.count, of.errors, time(of.p50_ns), time(of.p90_ns), time(of.p99_ns), time(of.p999_ns), time(of.max_ns)];

export class Services {
  /** `span()` is the page's time as parameters, or null for now. */
  constructor(span) {
    Object.assign(this, { span, shown: false, fresh: false, asked: 0, chosen: null, stop: null });
    $("services-again").addEventListener("click", () => this.ask());
    $("services-by").addEventListener("change", () => this.ask());
  }

  /** It is looked at, or no more. */
  look(shown) {
    const isAgain = shown && !this.shown, isOld = !this.span() && Date.now() - this.asked > OLD_MS;
    this.shown = shown;
    if (shown && (!this.fresh || (isAgain && isOld))) this.ask();
  }

  /** The page's time is another. */
  changed() {
    this.fresh = false;
    if (this.shown) this.ask();
  }

  async ask() {
    if (this.stop) this.stop.abort();
    const mine = this.stop = new AbortController();
    $("services-said").textContent = "asking …";
    [this.fresh, this.asked] = [true, Date.now()];
    try {
      const query = new URLSearchParams({ timeout: "60s", by: $("services-by").value, ...(this.span() || {}) });
      const tail = await json(`/api/v1/tail?${query}`, { signal: mine.signal });
      this.show(tail);
    } catch (error) {
      if (mine.signal.aborted) return;
      this.fresh = false;
      $("services-said").textContent = error.message;
      for (const id of ["services-partial", "services-notes"]) $(id).textContent = "";
      $("service-table").replaceChildren();
      $("service").hidden = true;
    }
  }

  show(tail) {
    const { services, coverage } = tail;
    $("services-said").textContent = services.length ? `${clock(tail.since_ns)} to ${clock(tail.until_ns)}; times are the server's, within 1.2 %` +
      (tail.left_out ? `; ${tail.left_out} more services are left out` : "") :
      "No requests are stored of this time. rankmesh up --serve NAME=port:N names a server; choose another time above.";
    const missing = coverage.missing.map((of) => `${of.node}: ${of.reason}`);
    $("services-partial").textContent = missing.length ? `PARTIAL: ${coverage.answered} of ${coverage.asked} nodes answered; missing ${missing.join("; ")}` : "";
    $("services-notes").textContent = coverage.notes.join("\n");
    $("service-table").replaceChildren();
    $("service").hidden = services.length === 0;
    if (!services.length) return;
    table($("service-table"), ["service", ...names], services.map((of) => [of.service, ...figures(of), of]),
      { caption: "Those with the most requests first; click one for its slowest", pick: (row) => this.choose(tail, row[8]) });
    this.choose(tail, services.find((of) => of.service === this.chosen) || services[0]);
  }

  /** One service: its hosts, and its slowest. */
  choose(tail, of) {
    this.chosen = of.service;
    $("service-title").textContent = of.service;
    const slower = of.groups.filter((group) => group.compared).map((group) => `${group.of} serves ${group.compared.quantile} ${group.compared.times.toFixed(1)} times slower than its peers.`);
    const unread = of.unread_share >= 0.01 ? `${percent(of.unread_share)} of their time they lay unread.` : "";
    $("service-words").textContent = [...slower, `First byte p50 ${duration(of.first_byte_p50_ns)}, p99 ${duration(of.first_byte_p99_ns)}.`, unread].filter(Boolean).join(" ");
    table($("service-groups"), [tail.by, ...names], of.groups.map((group) => [group.of, ...figures(group.figures), group.compared]),
      { caption: `By ${tail.by}`, mark: (row) => (row[8] ? "culprit" : "") });
    this.slowest(of.slowest);
  }

  slowest({ from_ns, rows, excess, shared, cannot_be_told, causes, causes_left_out, examples }) {
    const grown = excess && excess.grown;
    const averages = excess ? `The slowest 1 % (from ${duration(from_ns)} on; ${rows} looked into) take ${duration(excess.slow_ns)} on average, ordinary ones ${duration(excess.ordinary_ns)}.` : "";
    const shares = shared.map((one) => `${percent(one.share)} of them are of ${one.what} ${one.of} (${percent(one.ordinary_share)} of the ordinary ones).`);
    $("slowest-words").textContent = [excess && !grown ? "Nothing has grown." : "", averages, ...shares, ...cannot_be_told.map((why) => `Cannot be told: ${why}.`)].filter(Boolean).join(" ");
    for (const id of ["slowest-parts", "slowest-causes", "slowest-examples"]) $(id).replaceChildren();
    if (!grown) return;
    const parts = excess.parts.filter((more) => more.share >= LEAST);
    table($("slowest-parts"), ["share", "a request", "what they have more of"], parts.map((more) => [percent(more.share), duration(more.more_ns), more.text]), { caption: "Of what they take longer" });
    const leftOut = causes_left_out ? `; ${causes_left_out} more are left out` : "";
    table($("slowest-causes"), ["share", "requests", "p50", "p99", "what delays each most"], causes.map((of) => [percent(of.share), of.count, time(of.p50_ns), time(of.p99_ns), of.text, of]),
      { caption: `Requests by their cause${leftOut}; click one for its slowest`, pick: (row) => $("slowest-examples").replaceChildren(example(row[5].example)) });
    $("slowest-examples").replaceChildren(...examples.map(example));
  }
}

/** A request: a bar, and its links in words. */
function example(of) {
  const whole = element("li"), bar = element("div", undefined, "chain"), links = element("ul");
  whole.append(element("strong", [duration(of.duration_ns), of.route, of.status ?? ""].filter((text) => text !== "").join(" ")),
    element("span", ` on ${of.node} at ${clock(of.ts_ns)} (pid ${of.pid}, thread ${of.tid}, ts_ns ${of.ts_ns})`, "soft"), bar, links);
  bar.setAttribute("aria-hidden", "true");
  for (const link of of.path) {
    const part = element("span", undefined, `k ${KEYS[link.part.kind]}`);
    part.style.width = `${100 * link.ns / of.duration_ns}%`;
    part.title = `${duration(link.ns)} ${link.text}`;
    bar.append(part);
  }
  for (const link of of.path.filter((one) => one.ns >= LEAST * of.duration_ns)) {
    const line = element("li");
    line.append(element("span", undefined, `k ${KEYS[link.part.kind]}`), ` ${duration(link.ns)} ${link.text}`);
    links.append(line);
  }
  return whole;
}
