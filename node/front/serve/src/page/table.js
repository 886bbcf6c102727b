// Tables of any length: only rows in sight are in the document. All text is set as text.
"use strict";

const ROW = 26, AROUND = 20;

export const element = (name, text, className) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};

/** A value of an answer as text; what JSON has no form for is an object there. */
export const valueText = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value !== "object") return String(value);
  if (value.blob !== undefined) return `x'${value.blob}'`;
  if (value.real !== undefined) return value.real;
  return `text x'${value.text}'`;
};

/**
 * Shows rows in `place`.
 * @param columns names
 * @param rows arrays of values
 * @param options `pick(row)` for clicks, `mark(row)` for a row's class, `caption`
 */
export function table(place, columns, rows, options = {}) {
  let frame = place.querySelector(":scope > .rows");
  if (!frame) {
    frame = element("div", undefined, "rows");
    frame.tabIndex = 0;
    place.replaceChildren(frame);
  }
  const made = element("table"), caption = element("caption", options.caption || `${rows.length} row${rows.length === 1 ? "" : "s"}`);
  const head = element("thead"), names = element("tr"), body = element("tbody");
  const numeric = columns.map((_, at) => rows.some((row) => typeof row[at] === "number"));
  columns.forEach((name, at) => {
    const cell = element("th", name, numeric[at] ? "n" : "");
    cell.scope = "col";
    names.append(cell);
  });
  head.append(names);
  made.append(caption, head, body);
  const draw = () => {
    const from = Math.max(0, Math.floor(frame.scrollTop / ROW) - AROUND);
    const to = Math.min(rows.length, from + Math.ceil((frame.clientHeight || 500) / ROW) + 2 * AROUND);
    const space = (count) => {
      const row = element("tr"), cell = element("td", undefined, "pad");
      cell.colSpan = columns.length || 1;
      row.style.height = `${count * ROW}px`;
      row.append(cell);
      return row;
    };
    const shown = rows.slice(from, to).map((row) => {
      const line = element("tr", undefined, options.mark ? options.mark(row) : "");
      columns.forEach((_, at) => {
        const value = row[at];
        const cell = element("td", valueText(value), numeric[at] ? "n" : "");
        cell.title = cell.textContent;
        line.append(cell);
      });
      if (options.pick) {
        line.classList.add("pick");
        line.addEventListener("click", () => options.pick(row));
      }
      return line;
    });
    body.replaceChildren(...(from ? [space(from)] : []), ...shown, ...(to < rows.length ? [space(rows.length - to)] : []));
  };
  frame.onscroll = () => requestAnimationFrame(draw);
  const top = frame.scrollTop;
  frame.replaceChildren(made);
  frame.scrollTop = top;
  draw();
}

/** A length of time in nanoseconds with three digits. */
export function duration(ns) {
  if (ns === null || ns === undefined) return "not known";
  for (const [scale, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    const size = Math.abs(ns) / scale;
    if (size >= 0.9995) return `${(ns / scale).toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}
