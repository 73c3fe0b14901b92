"use strict";
// Charts as SVG, made node by node: no text is ever read as markup.
const Charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const INK = "#1b1f24", BLUE = "#0b62a8", RED = "#b8470b", GREY = "#8a8f98";

  function node(name, attributes, text) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  function element(name, text, attributes) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    return made;
  }
  // as wide as its place, so that text keeps its size on a narrow screen
  const width = (target) => Math.max(300, Math.round(target.clientWidth || 560));
  function picture(width, height, label) {
    return node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  }
  const times = (x) => x.toFixed(2) + "×";
  const size = (n) => (n >= 1024 && n % 1024 === 0 ? n / 1024 + "k" : String(n));

  function table(head, rows, caption) {
    const made = element("table");
    if (caption) made.append(element("caption", caption));
    const top = element("tr");
    for (const word of head) top.append(element("th", word, { scope: "col" }));
    made.append(top);
    for (const cells of rows) {
      const line = element("tr");
      cells.forEach((cell, i) => line.append(element(i ? "td" : "th", cell, i ? {} : { scope: "row" })));
      made.append(line);
    }
    return made;
  }
  function asTable(head, rows, open) {
    const made = element("details");
    made.open = Boolean(open);
    made.append(element("summary", "as a table"), table(head, rows));
    return made;
  }

  // losses: the shares run from the nominal speedup down to the effective one; causes alone stand side by side
  function losses(target, data) {
    const open = target.querySelector("details")?.open;
    const rows = data.causes.slice(0, 12), W = width(target), left = 84, step = 24;
    const H = 52 + step * rows.length;
    const svg = picture(W, H, `${data.label}. ${rows.map((r) => `${r.id} ${r.ln.toFixed(3)}`).join(", ")}`);
    let low = Math.log(Math.min(data.speedup, data.nominal)), high = Math.log(Math.max(data.speedup, data.nominal));
    let at = Math.log(data.nominal);
    const bars = rows.map((row) => {
      const bar = data.exact ? [at - row.ln, at] : [Math.log(data.speedup), Math.log(data.speedup) + row.ln];
      at -= row.ln;
      low = Math.min(low, ...bar); high = Math.max(high, ...bar);
      return bar;
    });
    const pad = 0.08 * (high - low || 1);
    low -= pad; high += pad;
    const x = (ln) => left + ((ln - low) / (high - low)) * (W - left - 66);
    for (const [ln, text] of [[Math.log(data.nominal), "promised " + times(data.nominal)], [Math.log(data.speedup), "now " + times(data.speedup)]]) {
      svg.append(node("line", { x1: x(ln), x2: x(ln), y1: 18, y2: H - 22, stroke: INK, "stroke-dasharray": "5 3" }));
      svg.append(node("text", { x: x(ln), y: text[0] === "p" ? 12 : H - 8, "text-anchor": "middle" }, text));
    }
    rows.forEach((row, i) => {
      const [a, b] = bars[i], y = 24 + step * i, gain = row.ln >= 0;
      svg.append(node("text", { x: left - 8, y: y + 13, "text-anchor": "end" }, row.id));
      const bar = node("rect", { x: x(Math.min(a, b)), y, width: Math.max(Math.abs(x(b) - x(a)), 1), height: 17, fill: gain ? RED : BLUE, "fill-opacity": data.exact ? 1 : 0.45 });
      bar.append(node("title", {}, row.meaning));
      svg.append(bar);
      svg.append(node("text", { x: x(Math.max(a, b)) + 5, y: y + 13 }, (gain ? "+" : "−") + Math.abs(row.ln).toFixed(3)));
    });
    const head = ["cause", data.exact ? "share, ln" : "alone, ln", "what it is"];
    target.replaceChildren(svg, asTable(head, rows.map((r) => [r.id, r.ln.toFixed(4), r.meaning]), open));
  }

  // points: [{n, speedup, exact}], measured: [{n, speedup, source}]
  function curve(target, points, measured, nominal) {
    const open = target.querySelector("details")?.open;
    const W = width(target), H = 300, left = 44, right = 14, top = 14, bottom = 42;
    const good = points.filter((p) => p.speedup);
    const values = [...good, ...measured].map((p) => p.speedup);
    const low = Math.min(0.9, ...values) * 0.96, high = Math.max(nominal, 1.1, ...values) * 1.05;
    const ns = [...points, ...measured].map((p) => p.n);
    const a = Math.log(Math.min(...ns)), b = Math.log(Math.max(...ns));
    const x = (n) => left + ((Math.log(n) - a) / (b - a || 1)) * (W - left - right);
    const y = (s) => top + ((high - s) / (high - low)) * (H - top - bottom);
    const svg = picture(W, H, `speedup over tokens: ${good.map((p) => `n ${p.n} ${times(p.speedup)}${p.exact ? "" : " estimated"}`).join(", ")}`);
    for (let tick = Math.ceil(low * 4) / 4; tick < high; tick += high > 2.6 ? 0.5 : 0.25) {
      svg.append(node("line", { x1: left, x2: W - right, y1: y(tick), y2: y(tick), stroke: "#d0d7de" }));
      svg.append(node("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, tick.toFixed(2)));
    }
    for (const [s, dash] of [[1, ""], [nominal, "6 3"]])
      svg.append(node("line", { x1: left, x2: W - right, y1: y(s), y2: y(s), stroke: INK, "stroke-dasharray": dash }));
    const every = W < 420 ? 2 : 1;
    points.forEach((p, i) => i % every || svg.append(node("text", { x: x(p.n), y: H - 24, "text-anchor": "middle" }, size(p.n))));
    svg.append(node("text", { x: (left + W) / 2, y: H - 6, "text-anchor": "middle" }, "n, tokens (log scale); speedup over dense, ×"));
    const solid = good.filter((p) => p.exact), path = (list) => list.map((p, i) => `${i ? "L" : "M"}${x(p.n).toFixed(1)} ${y(p.speedup).toFixed(1)}`).join("");
    if (solid.length < good.length) svg.append(node("path", { d: path(good), fill: "none", stroke: GREY, "stroke-width": 1.5, "stroke-dasharray": "4 4" }));
    svg.append(node("path", { d: path(solid), fill: "none", stroke: BLUE, "stroke-width": 2 }));
    for (const p of good) svg.append(node("circle", { cx: x(p.n), cy: y(p.speedup), r: 3.5, fill: p.exact ? BLUE : "white", stroke: p.exact ? BLUE : GREY, class: p.exact ? "exact" : "estimate" }));
    for (const p of measured) {
      const mark = node("rect", { x: x(p.n) - 4, y: y(p.speedup) - 4, width: 8, height: 8, fill: "white", stroke: RED, "stroke-width": 2, class: "measured" });
      mark.append(node("title", {}, `measured ${times(p.speedup)} (${p.source})`));
      svg.append(mark);
    }
    const rows = points.map((p) => [String(p.n), p.speedup ? times(p.speedup) : "no kernel", p.exact ? "exact" : "estimate"]);
    target.replaceChildren(svg, asTable(["n", "speedup", "kind"], [...rows, ...measured.map((p) => [String(p.n), times(p.speedup), "measured"])], open));
  }

  // colour of a cell, and whether white stands out from it more than black (relative luminance of WCAG 2)
  function channels(speedup) {
    const part = Math.max(-1, Math.min(1, Math.log(speedup) / Math.log(2)));
    const [r, g, b] = part >= 0 ? [11, 98, 168] : [184, 71, 11], w = Math.abs(part) ** 0.8;
    return [r, g, b].map((c) => Math.round(255 - (255 - c) * w));
  }
  const shade = (speedup) => `rgb(${channels(speedup).join(",")})`;
  function dark(speedup) {
    const [r, g, b] = channels(speedup).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.179;
  }

  // cells: by [side][token] {speedup, exact}
  function map(target, sides, tokens, cells, measured) {
    const open = target.querySelector("details")?.open;
    const W = width(target), H = 320, left = 50, top = 8, bottom = 42, right = 8;
    const w = (W - left - right) / tokens.length, h = (H - top - bottom) / sides.length;
    const svg = picture(W, H, "speedup over tokens and side of the weight; the table below has the numbers");
    sides.forEach((side, i) => {
      const y = H - bottom - (i + 1) * h;
      svg.append(node("text", { x: left - 6, y: y + h / 2 + 4, "text-anchor": "end" }, side + "²"));
      tokens.forEach((n, j) => {
        const cell = cells[i][j];
        svg.append(node("rect", { x: left + j * w + 0.5, y: y + 0.5, width: w - 1, height: h - 1, fill: cell.speedup ? shade(cell.speedup) : "white", stroke: cell.exact ? INK : "#d0d7de", "stroke-width": cell.exact ? 0.6 : 1, "stroke-dasharray": cell.exact ? "" : "3 3" }));
        if (!cell.speedup) return;
        const text = node("text", { x: left + (j + 0.5) * w, y: y + h - 5, "text-anchor": "middle", "font-style": cell.exact ? "normal" : "italic" }, (cell.exact || w < 38 ? "" : "~") + cell.speedup.toFixed(w < 38 ? 1 : 2));
        text.setAttribute("class", (dark(cell.speedup) ? "light" : "dark") + (w < 38 ? " small" : ""));
        svg.append(text);
      });
    });
    tokens.forEach((n, j) => svg.append(node("text", { x: left + (j + 0.5) * w, y: H - 24, "text-anchor": "middle" }, size(n))));
    svg.append(node("text", { x: (left + W) / 2, y: H - 6, "text-anchor": "middle" }, "n, tokens; blue: sparse faster, orange: slower"));
    const place = (list, v) => {
      const logs = list.map(Math.log), t = Math.log(v);
      if (t < logs[0] || t > logs.at(-1)) return null;
      let i = 0;
      while (i < logs.length - 2 && logs[i + 1] < t) i += 1;
      return i + (t - logs[i]) / (logs[i + 1] - logs[i]) + 0.5;
    };
    for (const p of measured) {
      const j = place(tokens, p.n), i = place(sides, Math.sqrt(p.m * p.k));
      if (j === null || i === null) continue;
      const mark = node("circle", { cx: left + j * w, cy: H - bottom - i * h, r: 5, fill: shade(p.speedup), stroke: INK, "stroke-width": 1.6, class: "measured" });
      mark.append(node("title", {}, `measured ${times(p.speedup)}: ${p.m}×${p.n}×${p.k} (${p.source})`));
      svg.append(mark);
    }
    const rows = sides.map((side, i) => [side + "²", ...cells[i].map((c) => (c.speedup ? (c.exact ? "" : "~") + c.speedup.toFixed(2) : "none"))]);
    target.replaceChildren(svg, asTable(["m = k", ...tokens.map(String)], rows, open));
  }
  return { losses, curve, map, table, element, times };
})();
