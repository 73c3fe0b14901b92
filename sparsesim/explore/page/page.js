"use strict";
// The page's state is its address. A change asks for the exact op and for estimates of the rest at once; exact points
// follow one by one, and stop when the state moves on.
(async () => {
  const el = (id) => document.getElementById(id);
  const FIELDS = ["gpu", "workload", "phase", "tokens", "op", "m", "n", "k", "dtype", "pattern", "stack", "timing", "l2"];
  const DEFAULTS = { gpu: "a100_pcie_80gb", workload: "", phase: "", tokens: "", op: "0", m: "4096", n: "2048", k: "4096", dtype: "f16", pattern: "2:4", stack: "cusparselt", timing: "kernel", l2: "rotating" };
  const QUIET_MS = 500; // without a change before the long computation begins
  let state = read(), turn = 0, stop = null, began = 0, sliders = [], pending = 0;

  function read() {
    const asked = new URLSearchParams(location.search), fields = { ...DEFAULTS }, sets = new Map(), strange = [];
    for (const [name, value] of asked) {
      if (name === "set") { const i = value.indexOf("="); sets.set(i < 0 ? value : value.slice(0, i), i < 0 ? "" : value.slice(i + 1)); }
      else if (FIELDS.includes(name)) fields[name] = value;
      else strange.push([name, value]); // the server says what is wrong with it
    }
    return { fields, sets, strange };
  }
  function query() {
    const made = new URLSearchParams();
    for (const name of FIELDS) {
      if (state.fields.workload ? ["m", "n", "k"].includes(name) : ["phase", "tokens", "op"].includes(name)) continue;
      if (state.fields[name] !== DEFAULTS[name]) made.append(name, state.fields[name]);
    }
    for (const [path, value] of [...state.sets].sort()) made.append("set", `${path}=${value}`);
    for (const [name, value] of state.strange) made.append(name, value);
    return made.toString();
  }
  async function ask(what, extra, signal) {
    const parts = [query(), extra].filter(Boolean).join("&");
    const reply = await fetch(`/api/${what}?${parts}`, { signal });
    const data = await reply.json();
    if (!reply.ok) throw Object.assign(new Error("refused"), { problems: data.errors });
    return data;
  }

  function fill(select, values) {
    select.replaceChildren(...values.map((v) => Charts.element("option", v.text ?? v, { value: v.value ?? v })));
  }
  function showFields() {
    for (const name of FIELDS) if (el(name).value !== state.fields[name]) el(name).value = state.fields[name];
    el("of-workload").hidden = !state.fields.workload;
    el("of-shape").hidden = Boolean(state.fields.workload);
  }
  const number = (value) => (value >= 1e5 || value < 1e-2 ? value.toExponential(3) : Number(value.toPrecision(5)).toString());
  const unit = (s) => (s.unit === "-" ? "" : s.unit);

  function showSliders(list) {
    sliders = list;
    const paths = list.map((s) => s.path).join();
    if (el("sliders").dataset.paths !== paths) {
      el("sliders").dataset.paths = paths;
      el("sliders").replaceChildren(...list.map((s) => {
        const box = Charts.element("div", undefined, { class: "slider" });
        const label = Charts.element("label", undefined, { for: `s-${s.path}` });
        label.append(Charts.element("span", s.path), Charts.element("output", "", { for: `s-${s.path}` }));
        // a step is an eighth of an octave, a notch of its own each way from the file's value
        const input = Charts.element("input", undefined, { type: "range", id: `s-${s.path}`, step: "1" });
        input.addEventListener("input", () => moved(s.path, Number(input.value)));
        box.append(label, input);
        return box;
      }));
    }
    list.forEach((s, i) => {
      const box = el("sliders").children[i], input = box.querySelector("input");
      input.min = Math.ceil(8 * Math.log2(s.low / s.base) - 1e-9);
      input.max = Math.floor(8 * Math.log2(s.high / s.base) + 1e-9);
      if (document.activeElement !== input || !state.sets.has(s.path)) input.value = Math.round(8 * Math.log2(s.value / s.base));
      label(box, s, s.value);
    });
  }
  function label(box, s, value) {
    const text = `${number(value)} ${unit(s)}`.trim();
    box.querySelector("output").textContent = value === s.base ? text : `${text} (${number(s.base)})`;
    box.querySelector("input").setAttribute("aria-valuetext", text);
    box.classList.toggle("changed", value !== s.base);
  }
  function moved(path, notch) {
    const i = sliders.findIndex((s) => s.path === path), s = sliders[i];
    let value = s.base * 2 ** (notch / 8);
    value = s.whole ? Math.round(value) : Number(value.toPrecision(4));
    value = Math.max(s.low, Math.min(s.high, value));
    if (notch === 0) { state.sets.delete(path); value = s.base; }
    else state.sets.set(path, `${value}${unit(s)}`);
    label(el("sliders").children[i], s, value);
    changed();
  }

  let waiting = null;
  function changed(push) {
    began = performance.now();
    delete document.documentElement.dataset.updatedMs;
    delete document.documentElement.dataset.done;
    history[push ? "pushState" : "replaceState"](null, "", query() ? `/?${query()}` : "/");
    el("download").href = `/hardware.toml${query() ? "?" + query() : ""}`;
    el("state").textContent = "computing";
    document.querySelectorAll("#losses, #curve, #map, #counters, #headline").forEach((part) => part.classList.add("stale"));
    if (stop) stop.abort();
    clearTimeout(waiting);
    waiting = setTimeout(update, 25); // what a dragged slider sends at once is one change
  }

  async function update() {
    const mine = ++turn;
    stop = new AbortController();
    const signal = stop.signal, live = () => mine === turn;
    const part = (id, exact, text) => { el(id).classList.remove("stale"); const l = el(`${id}-label`); l.textContent = text; l.classList.toggle("estimate", !exact); };
    try {
      let answer = null;
      const first = ask("answer", "", signal).then((data) => { if (live()) { answer = data; showAnswer(data); part("counters", true, "exact"); } });
      const early = ask("estimate", "", signal);
      const alone = ask("alone", "", signal).then((data) => {
        if (!live()) return;
        Charts.losses(el("losses"), data);
        part("losses", false, `estimate; ${data.label}`);
      });
      for (const promise of [early, alone]) promise.catch(() => {}); // told where it is awaited; the first failure ends the turn
      await first;
      const rough = await early;
      if (!live()) return;
      const points = rough.curve.map((p) => ({ ...p, exact: false })), cells = rough.map.map((row) => row.map((speedup) => ({ speedup, exact: false })));
      const as = state.sets.size ? "measured on the GPU as it is" : "measured";
      const drawCurve = () => {
        const left = points.filter((p) => !p.exact).length;
        Charts.curve(el("curve"), points, answer.measured.curve, answer.result.nominal_speedup);
        part("curve", !left, left ? `${left} of ${points.length} points are estimates (hollow); exact ones follow` : `exact${answer.measured.curve.length ? `; squares: ${as}` : ""}`);
      };
      const drawMap = () => {
        const left = cells.flat().filter((c) => !c.exact).length;
        Charts.map(el("map"), choices.sides, choices.tokens, cells, answer.measured.map);
        part("map", !left, left ? `${left} of ${cells.flat().length} cells are estimates (~); exact ones follow` : `exact${answer.measured.map.length ? `; circles: ${as}` : ""}`);
      };
      drawCurve();
      drawMap();
      await alone;
      if (!live()) return;
      const took = Math.round(performance.now() - began);
      document.documentElement.dataset.updatedMs = took;
      el("state").textContent = `all panels answered in ${took} ms; refining`;
      await new Promise((go) => setTimeout(go, QUIET_MS));
      if (!live()) return;
      const rest = [];
      const op = answer.op;
      const exact = async () => {
        for (const p of points) {
          const got = await ask("point", `at_m=${op.m}&at_n=${p.n}&at_k=${op.k}`, signal);
          if (!live()) return;
          Object.assign(p, { speedup: got.speedup ?? null, exact: true });
          drawCurve();
        }
        if (answer.ops.length) await rows(answer, signal, live);
        if (!live()) return;
        for (let i = 0; i < cells.length; i++) for (let j = 0; j < cells[i].length; j++) {
          const side = choices.sides[i];
          const got = await ask("point", `at_m=${side}&at_n=${choices.tokens[j]}&at_k=${side}`, signal);
          if (!live()) return;
          cells[i][j] = { speedup: got.speedup ?? null, exact: true };
          if (j === cells[i].length - 1) drawMap();
        }
      };
      rest.push(exact());
      rest.push(ask("losses", "", signal).then((data) => {
        if (!live()) return;
        Charts.losses(el("losses"), data);
        part("losses", true, data.label);
      }));
      for (const promise of rest) promise.catch(() => {});
      await Promise.all(rest);
      if (!live()) return;
      el("state").textContent = `all panels answered in ${took} ms, exact after ${((performance.now() - began) / 1000).toFixed(1)} s`;
      document.documentElement.dataset.done = "1";
    } catch (error) {
      if (error.name === "AbortError" || !live()) return;
      stop.abort();
      const lines = error.problems || ["the server does not answer: is `sparsesim explore` still running?"];
      el("errors").replaceChildren(...lines.map((line) => Charts.element("li", line)));
      el("errors").hidden = false;
      el("state").textContent = "not computed";
      document.documentElement.dataset.done = "error";
    }
  }

  function showAnswer(data) {
    const r = data.result;
    el("errors").hidden = true;
    const line = el("headline");
    line.classList.remove("stale");
    line.replaceChildren(
      Charts.element("strong", Charts.times(r.speedup)),
      ` of ${r.nominal_speedup.toFixed(2)}× promised: ${r.time_us.toPrecision(4)} µs, dense ${r.dense_time_us.toPrecision(4)} µs; ${r.path} path (${r.reason}), bound by ${r.bound_by}. ${data.gpu}${data.changed.length ? ", changed" : ""}, ${data.op.m}×${data.op.n}×${data.op.k} ${data.op.dtype} ${data.op.pattern}`,
    );
    el("command").textContent = data.command;
    showSliders(data.sliders);
    if (data.ops.length) {
      fill(el("op"), data.ops.map((op, i) => ({ value: String(i), text: op.name })));
      el("op").value = state.fields.op;
    }
    el("ops-section").hidden = !data.ops.length;
    const names = Object.keys(r.counters), shown = (v) => (typeof v === "number" ? number(v) : String(v ?? ""));
    const rows = [["kernel", r.kernel.name, r.dense_kernel.name], ["clock, MHz", shown(r.clock_mhz), shown(r.dense_clock_mhz)]];
    for (const name of names) {
      const dense = (r.dense_counters || {})[name];
      rows.push([name, shown(r.counters[name]), shown(dense)]);
    }
    el("counters").replaceChildren(Charts.table(["counter", "this run", "dense"], rows));
  }

  async function rows(answer, signal, live) {
    const got = [];
    for (let i = 0; i < answer.ops.length; i++) {
      got.push(await ask("row", `index=${i}`, signal));
      if (!live()) return;
      const dense = got.reduce((sum, r) => sum + r.count * r.dense_time_us, 0), time = got.reduce((sum, r) => sum + r.count * r.time_us, 0);
      el("ops-label").textContent = `${got.length} of ${answer.ops.length} ops, exact; kernel times summed: ${(time / 1000).toPrecision(4)} ms, dense ${(dense / 1000).toPrecision(4)} ms, speedup ${Charts.times(dense / time)}`;
      el("ops-label").classList.toggle("estimate", got.length < answer.ops.length);
      el("ops").replaceChildren(Charts.table(["op", "count", "shape", "path", "time, µs", "dense, µs", "speedup"],
        got.map((r) => [r.name, String(r.count), `${r.m}×${r.n}×${r.k} ${r.dtype} ${r.pattern}`, `${r.path} (${r.reason})`, r.time_us.toPrecision(4), r.dense_time_us.toPrecision(4), r.speedup.toFixed(3)])));
    }
  }

  const choices = await (await fetch("/api/choices")).json();
  fill(el("gpu"), choices.gpu);
  fill(el("workload"), [{ value: "", text: "one GEMM, by its shape" }, ...choices.workload]);
  for (const name of ["dtype", "stack", "timing", "l2"]) fill(el(name), choices[name]);
  fill(el("patterns"), choices.pattern);
  el("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const name of FIELDS) el(name).addEventListener("change", () => {
    state.fields[name] = el(name).value.trim();
    state.strange = [];
    if (name === "gpu") state.sets.clear(); // another GPU has other bounds
    if (name === "workload") Object.assign(state.fields, { phase: "", tokens: "", op: "0" });
    if (name === "phase" || name === "tokens") state.fields.op = "0";
    showFields();
    changed(true);
  });
  el("reset").addEventListener("click", () => { state.sets.clear(); changed(true); });
  el("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(el("command").textContent);
      el("copy").textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(el("command"));
      el("copy").textContent = "Selected: press Ctrl-C";
    }
    setTimeout(() => { el("copy").textContent = "Copy as command"; }, 2000);
  });
  window.addEventListener("popstate", () => { state = read(); showFields(); changed(); });
  showFields();
  changed();
})();
