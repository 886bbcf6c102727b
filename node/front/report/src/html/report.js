// What the page does beyond text and tables: the heat map, sorting and filtering ranks, saving CSV.
// Everything comes from the element #board; nothing is loaded, nothing is sent.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  document.querySelectorAll(".needs-script").forEach((element) => { element.hidden = false; });

  // A length of time in microseconds, with three digits.
  const shown = (us) => {
    for (const [scale, unit] of [[1e6, "s"], [1e3, "ms"], [1, "µs"]]) {
      const size = us / scale;
      if (size >= 0.9995) return size.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2) + " " + unit;
    }
    return Math.round(us * 1e3) + " ns";
  };

  const board = JSON.parse($("board").textContent);
  if (board && board.ranks.length && board.end_ms.length) {
    // Two bytes a time: exponent above 11 bits of fraction; all ones: not known.
    const unpacked = (text) => {
      const raw = atob(text), times = new Float64Array(raw.length / 2);
      for (let i = 0; i < times.length; i++) {
        const bits = raw.charCodeAt(2 * i) | raw.charCodeAt(2 * i + 1) << 8, exponent = bits >> 11, fraction = bits & 0x7ff;
        times[i] = bits === 0xffff ? NaN : exponent === 0 ? fraction : (fraction | 0x800) * 2 ** (exponent - 1);
      }
      return times;
    };
    const values = { late: unpacked(board.late), held: unpacked(board.held), wait: unpacked(board.wait), compute: unpacked(board.compute) };
    const map = $("map"), cell = $("cell"), context = map.getContext("2d");
    const rows = board.ranks.length, columns = board.end_ms.length;
    const span = board.end_ms[columns - 1] || 1;
    let metric = board.first, at = null;

    const colours = () => {
      const style = getComputedStyle(document.documentElement);
      const parse = (name) => {
        const hex = style.getPropertyValue(name).trim().slice(1);
        return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
      };
      const [low, mid, high] = ["--low", "--mid", "--high"].map(parse);
      const mix = (a, b, t) => a.map((from, i) => Math.round(from + (b[i] - from) * t));
      return (t) => (t < 0.5 ? mix(low, mid, 2 * t) : mix(mid, high, 2 * t - 1));
    };

    // Lateness and waits begin at nothing; what ranks compute differs by little, so by its spread.
    const range = () => {
      const known = Array.from(values[metric].filter((us) => !Number.isNaN(us))).sort((a, b) => a - b);
      const high = known[Math.min(known.length - 1, Math.floor(known.length * 0.999))] || 1;
      return [metric === "compute" ? known[Math.floor(known.length * 0.01)] || 0 : 0, high];
    };

    // Who each row is, as far as there is room for text.
    const name = (lane) => {
      const labels = $("map-labels"), ratio = window.devicePixelRatio || 1, row = lane * ratio * map.clientHeight / (lane * rows);
      const wide = Math.max(1, Math.round(labels.clientWidth * ratio)), high = Math.max(1, Math.round(map.clientHeight * ratio));
      Object.assign(labels, { width: wide, height: high });
      labels.style.height = map.style.height;
      const text = labels.getContext("2d"), every = Math.max(1, Math.ceil(14 * ratio / row));
      Object.assign(text, { font: `${11 * ratio}px system-ui, sans-serif`, textAlign: "right", textBaseline: "middle" });
      const style = getComputedStyle(document.documentElement);
      for (let at = 0; at < rows; at += every) {
        text.fillStyle = style.getPropertyValue(at < board.named ? "--bad" : "--ink");
        text.fillText(`${board.ranks[at][0]} ${board.ranks[at][1]}`, wide - 5 * ratio, (at + 0.5) * row, wide - 8 * ratio);
      }
    };
    const means = { late: "entered late by", held: "the others waited longer by", wait: "waited for", compute: "computed for" };

    const draw = () => {
      const wide = Math.max(1, Math.round(map.clientWidth * (window.devicePixelRatio || 1)));
      const lane = Math.max(2, Math.min(18, Math.floor(640 / rows)));
      map.width = wide;
      map.height = lane * rows;
      map.style.height = Math.max(40, Math.round(lane * rows)) + "px";
      const [low, high] = range(), colour = colours(), image = context.createImageData(wide, map.height);
      const windowOf = new Int32Array(wide).fill(-1);
      for (let column = 0; column < columns; column++) {
        const to = Math.max(1, Math.round(board.end_ms[column] / span * wide));
        const from = Math.min(to - 1, Math.round((board.end_ms[column] - board.window_ms) / span * wide));
        // Of several windows in one pixel the one with the latest rank is shown.
        for (let x = Math.max(0, from); x < to; x++) {
          if (windowOf[x] < 0 || peak(column) > peak(windowOf[x])) windowOf[x] = column;
        }
      }
      for (let y = 0; y < map.height; y++) {
        const row = Math.floor(y / lane);
        for (let x = 0; x < wide; x++) {
          const column = windowOf[x], us = column < 0 ? NaN : values[metric][row * columns + column];
          const unknown = Number.isNaN(us), hatch = unknown && (x + y) % 6 < 2;
          const [r, g, b] = unknown ? colour(hatch ? 0.18 : 0) : colour(Math.max(0, Math.min(1, (us - low) / (high - low || 1))));
          image.data.set([r, g, b, 255], 4 * (y * wide + x));
        }
      }
      context.putImageData(image, 0, 0);
      if (at) {
        const x = Math.round((board.end_ms[at[1]] - board.window_ms / 2) / span * wide);
        context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--curve");
        context.lineWidth = 2;
        context.strokeRect(Math.max(1, x - 4), at[0] * lane, 8, lane);
      }
      const scale = $("scale").getContext("2d");
      for (let x = 0; x < 240; x++) {
        scale.fillStyle = "rgb(" + colour(x / 239).join(",") + ")";
        scale.fillRect(x, 0, 1, 10);
      }
      name(lane);
      $("scale-means").textContent = means[metric];
      $("scale-low").textContent = shown(low);
      $("scale-high").textContent = shown(high);
    };

    const peaks = new Map();
    function peak(column) {
      const key = metric + column;
      if (!peaks.has(key)) {
        let highest = -1;
        for (let row = 0; row < rows; row++) highest = Math.max(highest, values[metric][row * columns + column] || 0);
        peaks.set(key, highest);
      }
      return peaks.get(key);
    }

    const tell = () => {
      const [row, column] = at, [rank, node, pid] = board.ranks[row];
      const time = new Date(board.since_ms + board.end_ms[column] - board.window_ms).toISOString().slice(11, 21);
      const part = (name, words) => {
        const us = values[name][row * columns + column];
        return words + " " + (Number.isNaN(us) ? "not known" : shown(us));
      };
      cell.textContent = `${time} UTC, rank ${rank} on ${node} (process ${pid}): ` +
        [part("late", "late by"), part("held", "others waited longer by"), part("wait", "waited"), part("compute", "computed")].join(", ") + ".";
    };

    map.addEventListener("pointermove", (event) => {
      const box = map.getBoundingClientRect();
      const ms = (event.clientX - box.left) / box.width * span;
      let column = board.end_ms.findIndex((end) => end >= ms);
      if (column < 0) column = columns - 1;
      at = [Math.max(0, Math.min(rows - 1, Math.floor((event.clientY - box.top) / box.height * rows))), column];
      tell();
    });
    map.addEventListener("keydown", (event) => {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [0, -20], PageDown: [0, 20], Home: [0, -columns], End: [0, columns] };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      const [row, column] = at || [0, 0], bounded = (n, end) => Math.max(0, Math.min(end - 1, n));
      at = at ? [bounded(row + move[0], rows), bounded(column + move[1], columns)] : [0, 0];
      tell();
      draw();
    });
    document.querySelectorAll("input[name=metric]").forEach((input) => {
      input.checked = input.value === metric;
      input.addEventListener("change", () => { metric = input.value; draw(); });
    });
    window.addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    matchMedia("print").addEventListener("change", draw);
    draw();
  }

  const table = $("rank-table");
  if (table) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const key = (row, column) => {
      const data = row.cells[column].dataset.v, text = row.cells[column].textContent;
      if (data !== undefined) return Number(data);
      return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
    };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].map((row) => [key(row, column), row]);
        rows.sort(([a], [b]) => {
          // What is not known comes last, whichever way.
          if (a === "" || b === "") return (a === "") - (b === "");
          const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
          return down ? -order : order;
        });
        body.replaceChildren(...rows.map(([, row]) => row));
      });
    });
    const filter = $("filter");
    filter.addEventListener("input", () => {
      const wanted = filter.value.toLowerCase();
      let left = 0;
      for (const row of body.rows) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
        left += row.hidden ? 0 : 1;
      }
      $("filtered").textContent = wanted ? `${left} of ${body.rows.length}` : "";
    });
  }

  document.querySelectorAll(".save").forEach((button) => {
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([$(button.dataset.of).textContent], { type: "text/csv" }));
      link.download = button.dataset.of + ".csv";
      link.click();
      URL.revokeObjectURL(link.href);
    });
  });
})();
