// Which time everything on the page is about: now, the last so many minutes, or between two times.
// Times are shown and typed in the browser's zone, which is said.
"use strict";

const $ = (id) => document.getElementById(id);

/** The browser's zone with its offset, as `Europe/Berlin (UTC+01:00)`. */
export function zone(at = new Date()) {
  const behind = at.getTimezoneOffset(), away = Math.abs(behind), two = (n) => String(n).padStart(2, "0");
  const offset = `UTC${behind > 0 ? "-" : "+"}${two(Math.floor(away / 60))}:${two(away % 60)}`;
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return name && name !== "UTC" ? `${name} (${offset})` : offset.replace("UTC+00:00", "UTC");
}

const parts = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });

/** A point in time, Unix nanoseconds, in the browser's zone. */
export const clock = (ns) => parts.format(new Date(Number(ns) / 1e6));

/** The same without its date, with so many digits of the second. */
export function timeOfDay(ns, digits = 0) {
  const at = Number(ns) / 1e6, text = clock(ns).slice(11);
  return digits ? `${text}.${String(Math.floor(((at % 1000) + 1000) % 1000)).padStart(3, "0").slice(0, digits)}` : text;
}

export class TimePicker {
  /** `changed` is called with what requests take: `{since, until}`, or null for now. */
  constructor(changed) {
    Object.assign(this, { changed, given: null, resolved: null });
    $("zone").textContent = `Times are ${zone()}.`;
    $("time-kind").addEventListener("change", () => this.kind());
    $("time").addEventListener("submit", (event) => { event.preventDefault(); this.apply(); });
    this.kind(false);
  }

  /** Shows the fields of the chosen kind; what needs none is applied at once. */
  kind(apply = true) {
    const kind = $("time-kind").value;
    $("time-last").hidden = kind !== "last";
    $("time-between").hidden = kind !== "between";
    $("time-apply").hidden = kind === "now";
    if (kind === "between" && !$("time-from").value) {
      const local = (ms) => clock(ms * 1e6).replace(" ", "T");
      const end = this.end_ms || Date.now();
      [$("time-from").value, $("time-to").value] = [local(end - 600e3), local(end)];
    }
    if (apply && kind === "now") this.apply();
  }

  /** Of stores `now` is their end. */
  endsAt(ns, ofStores) {
    this.end_ms = ofStores ? Number(ns) / 1e6 : null;
    $("time-kind").options[0].textContent = ofStores ? "the end of the stores" : "now, live";
  }

  apply() {
    const kind = $("time-kind").value;
    $("time-said").textContent = "";
    if (kind === "now") this.given = null;
    else if (kind === "last") this.given = { since: $("time-minutes").value };
    else {
      const [from, to] = [$("time-from").value, $("time-to").value].map((text) => new Date(text));
      if (!(from < to)) {
        $("time-said").textContent = "the span ends before it begins";
        return;
      }
      this.given = { since: from.toISOString(), until: to.toISOString() };
    }
    this.resolved = null;
    this.changed(this.given);
  }

  /** The span in Unix nanoseconds once an answer said where it ends; of now the last minute. */
  resolve(at_ns) {
    // The next whole microsecond but one: numbers here have lost the last digits.
    const end = BigInt(Math.floor(Number(at_ns) / 1e3) + 2) * 1000n;
    const given = this.given;
    const span = given && given.until
      ? [BigInt(Date.parse(given.since)) * 1000000n, BigInt(Date.parse(given.until)) * 1000000n]
      : [end - BigInt(given ? seconds(given.since) : 60) * 1000000000n, end];
    this.resolved = { since_ns: span[0], until_ns: span[1] };
    $("time-said").textContent = given ? `${clock(span[0])} to ${clock(span[1])}` : "";
    return this.resolved;
  }

  /** Of what is asked for with `:since` and `:until`. */
  span() {
    return this.resolved || this.resolve(Date.now() * 1e6);
  }
}

/** Seconds of the choices `1m`, `1h`, `1d`. */
function seconds(text) {
  const [, number, unit] = /^(\d+)([mhd])$/.exec(text);
  return Number(number) * { m: 60, h: 3600, d: 86400 }[unit];
}
