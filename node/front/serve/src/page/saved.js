// Saved investigations: chosen from a list, parameters in a form, asked by name, so that values stay
// values.
"use strict";

import { json } from "./api.js";
import { element } from "./table.js";

const $ = (id) => document.getElementById(id);
let all = [], chosen = null;

const numbers = { integer: "a whole number", real: "a number", text: "a text", time: "10m (ago), now, or 2026-11-22T03:00:00Z", duration: "10s, 5m, 2h" };

/** Fills the list; `ask(body)` asks, `take(sql)` takes the SQL into the editor, `span()` is the page's time or null. */
export async function open(ask, take, span) {
  $("saved-ask").addEventListener("submit", (event) => { event.preventDefault(); if (chosen) ask({ saved: chosen.name, parameters: values() }); });
  $("saved-edit").addEventListener("click", () => chosen && take(chosen.sql));
  $("saved").addEventListener("change", () => choose(all.find((of) => of.name === $("saved").value), span));
  try {
    const found = await json("/api/v1/investigations");
    all = found.investigations;
    const group = (label, of) => {
      const part = element("optgroup");
      part.label = label;
      part.append(...of.map((one) => { const option = element("option", one.title); option.value = one.name; return option; }));
      return part;
    };
    const [own, shipped] = [all.filter((of) => of.of_site), all.filter((of) => !of.of_site)];
    $("saved").append(...(own.length ? [group("The site's own", own)] : []), group("Shipped", shipped));
    $("saved-unread").textContent = found.unread.map((of) => `${of.name}.sql is no investigation: ${of.reason}`).join("\n");
  } catch (error) {
    $("saved-unread").textContent = error.message;
  }
}

/** Times follow the page's, unless somebody typed others. */
export function timeChanged(span) {
  if (chosen) choose(chosen, () => span, values());
}

function choose(of, span, before = {}) {
  chosen = of || null;
  $("saved-ask").hidden = !chosen;
  if (!chosen) return;
  const now = span(), ofPage = now ? { since: now.since, until: now.until || "now" } : {};
  $("saved-about").textContent = chosen.about;
  $("saved-sql").textContent = chosen.sql;
  $("saved-parameters").replaceChildren(...chosen.parameters.map((of) => {
    const label = element("label", `${of.name} `), input = element("input");
    input.name = of.name;
    input.size = of.type === "time" ? 22 : 12;
    input.value = (of.type === "time" && ofPage[of.name]) || (of.type !== "time" && before[of.name]) || of.default || "";
    input.required = of.default === null;
    input.placeholder = numbers[of.type];
    input.title = [of.about, numbers[of.type]].filter(Boolean).join("; ");
    label.append(input, element("span", of.about, "soft"));
    return label;
  }));
}

function values() {
  const given = {};
  for (const input of $("saved-parameters").querySelectorAll("input")) {
    const of = chosen.parameters.find((one) => one.name === input.name);
    if (of && (input.value !== "" || of.type === "text")) given[input.name] = input.value;
  }
  return given;
}
