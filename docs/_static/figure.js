/* The figure of "Start here": P and Q over five categories, to be moved with a pointer or the keyboard; both divergences and every term follow.
   One file, no dependencies, nothing loaded. Every number shown carries its full digits in data-value. */
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const NAMES = ["a", "b", "c", "d", "e"];
  const PRESETS = [
    ["Two guesses", [0.4, 0.3, 0.15, 0.1, 0.05], [0.2, 0.2, 0.2, 0.2, 0.2]],
    ["Equal", [0.4, 0.3, 0.15, 0.1, 0.05], [0.4, 0.3, 0.15, 0.1, 0.05]],
    ["Two modes, Q covers both", [0.44, 0.05, 0.02, 0.05, 0.44], [0.22, 0.2, 0.16, 0.2, 0.22]],
    ["Two modes, Q picks one", [0.44, 0.05, 0.02, 0.05, 0.44], [0.88, 0.08, 0.02, 0.01, 0.01]],
    ["Q rules something out", [0.3, 0.3, 0.2, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1, 0]],
  ];
  const WIDTH = 480, HEIGHT = 290, TOP = 14, BASE = 260, SCALE = BASE - TOP;

  /* p·log(p/q), with 0·log 0 = 0. */
  const term = (p, q) => (p === 0 ? 0 : q === 0 ? Infinity : p * Math.log(p / q));
  /* Every summand is at least 0, so the sum keeps its digits where P is close to Q. */
  const divergence = (p, q) => p.reduce((sum, x, i) => sum + (term(x, q[i]) - x + q[i]), 0);

  /* One probability becomes `value`; the others keep their proportions. */
  function moved(probabilities, index, value) {
    const rest = 1 - probabilities[index];
    return probabilities.map((x, i) => (i === index ? value : rest > 0 ? (x * (1 - value)) / rest : (1 - value) / (probabilities.length - 1)));
  }

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function shape(name, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  const shown = (x, digits) => (x === Infinity ? "∞" : x.toFixed(digits).replace("-", "−"));

  function start(root) {
    let state = { p: [...PRESETS[0][1]], q: [...PRESETS[0][2]], base: "nats" };
    const unit = () => (state.base === "bits" ? Math.LN2 : 1);

    /* Controls. */
    const presets = element("div", { class: "kl-controls", role: "group", "aria-label": "Examples" });
    for (const [name, p, q] of PRESETS) {
      const button = element("button", { type: "button" }, name);
      button.addEventListener("click", () => update({ p: [...p], q: [...q] }));
      presets.append(button);
    }
    const units = element("fieldset", { class: "kl-units" }, element("legend", {}, "Unit"));
    for (const name of ["nats", "bits"]) {
      const radio = element("input", { type: "radio", name: "kl-unit", value: name });
      radio.checked = name === state.base;
      radio.addEventListener("change", () => update({ base: name }));
      units.append(element("label", {}, radio, ` ${name}`));
    }

    /* The two divergences. */
    const totals = { pq: element("output"), qp: element("output") };
    const results = element("div", { class: "kl-results" },
      element("div", { class: "kl-result" }, element("span", {}, "KL(P‖Q)"), totals.pq),
      element("div", { class: "kl-result" }, element("span", {}, "KL(Q‖P)"), totals.qp));
    const spoken = element("p", { class: "kl-spoken", "aria-live": "polite" });

    /* The bars. Each column from the axis to the top is a slider. */
    const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "kl-bars", role: "group", "aria-label": "The probabilities of P and Q, as sliders" });
    for (const level of [0.25, 0.5, 0.75, 1]) {
      const y = BASE - level * SCALE;
      picture.append(shape("line", { class: "kl-grid", x1: 36, x2: WIDTH, y1: y, y2: y }), shape("text", { class: "kl-tick", x: 30, y: y + 4, "text-anchor": "end" }, String(level)));
    }
    picture.append(shape("line", { class: "kl-axis", x1: 36, x2: WIDTH, y1: BASE, y2: BASE }));
    const group = (WIDTH - 44) / NAMES.length;
    const sliders = [];
    NAMES.forEach((name, index) => {
      const left = 44 + index * group;
      picture.append(shape("text", { class: "kl-tick", x: left + group / 2 - 4, y: BASE + 20, "text-anchor": "middle" }, name));
      ["p", "q"].forEach((side, k) => {
        const x = left + 4 + k * (group / 2 - 6), width = group / 2 - 10;
        const bar = shape("rect", { class: `kl-bar kl-${side}`, x, width });
        const handle = shape("rect", { class: `kl-handle kl-${side}`, x: x - 2, width: width + 4, height: 9, rx: 3 });
        const column = shape("rect", { class: "kl-column", x: x - 3, y: TOP - 8, width: width + 6, height: SCALE + 16 });
        const slider = shape("g", {
          class: "kl-slider", role: "slider", tabindex: 0, "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": 1,
          "aria-label": `${side.toUpperCase()} of ${name}`, "data-side": side, "data-index": index,
        }, column, bar, handle);
        listen(slider, side, index);
        sliders.push({ side, index, slider, bar, handle });
        picture.append(slider);
      });
    });

    /* Every term. */
    const head = element("tr");
    for (const title of ["", "p", "q", "p·log(p/q)", "q·log(q/p)"]) head.append(element("th", { scope: "col" }, title));
    const body = element("tbody");
    const rows = [...NAMES, "sum"].map((name) => {
      const cells = ["p", "q", "pq", "qp"].map((key) => element("td", { "data-key": key }));
      body.append(element("tr", name === "sum" ? { class: "kl-sum" } : {}, element("th", { scope: "row" }, name), ...cells));
      return cells;
    });
    const table = element("table", { class: "kl-terms" }, element("caption", {}, "Every term"), element("thead", {}, head), body);

    function listen(slider, side, index) {
      const set = (value) => update({ [side]: moved(state[side], index, Math.min(1, Math.max(0, value))) });
      const fromPointer = (event) => {
        const box = picture.getBoundingClientRect();
        /* In hundredths: what is shown is what was set. */
        set(Math.round(100 * (BASE - ((event.clientY - box.top) / box.height) * HEIGHT) / SCALE) / 100);
      };
      slider.addEventListener("pointerdown", (event) => {
        slider.setPointerCapture(event.pointerId);
        slider.focus();
        fromPointer(event);
        event.preventDefault();
      });
      slider.addEventListener("pointermove", (event) => slider.hasPointerCapture(event.pointerId) && fromPointer(event));
      slider.addEventListener("keydown", (event) => {
        const now = state[side][index];
        const to = {
          ArrowUp: now + 0.01, ArrowRight: now + 0.01, ArrowDown: now - 0.01, ArrowLeft: now - 0.01,
          PageUp: now + 0.1, PageDown: now - 0.1, Home: 0, End: 1,
        }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        set(to);
      });
    }

    function put(cell, value, digits) {
      cell.textContent = shown(value, digits);
      cell.dataset.value = value;
    }

    function update(change) {
      state = { ...state, ...change };
      const { p, q } = state;
      for (const { side, index, slider, bar, handle } of sliders) {
        const value = state[side][index];
        bar.setAttribute("y", BASE - value * SCALE);
        bar.setAttribute("height", value * SCALE);
        handle.setAttribute("y", BASE - value * SCALE - 4.5);
        slider.setAttribute("aria-valuenow", value.toFixed(3));
        slider.setAttribute("aria-valuetext", `${(100 * value).toFixed(1)} percent`);
      }
      const sums = { p: 0, q: 0 };
      NAMES.forEach((_, i) => {
        sums.p += p[i];
        sums.q += q[i];
        [p[i], q[i]].forEach((value, k) => put(rows[i][k], value, 3));
        [term(p[i], q[i]), term(q[i], p[i])].forEach((value, k) => put(rows[i][k + 2], value / unit(), 4));
      });
      const pq = divergence(p, q) / unit(), qp = divergence(q, p) / unit();
      [sums.p, sums.q].forEach((value, k) => put(rows[NAMES.length][k], value, 3));
      [pq, qp].forEach((value, k) => put(rows[NAMES.length][k + 2], value, 4));
      put(totals.pq, pq, 4);
      put(totals.qp, qp, 4);
      for (const total of Object.values(totals)) total.append(` ${state.base}`);
      clearTimeout(update.timer);
      /* Not at every step of a drag. */
      update.timer = setTimeout(() => {
        const said = (x) => (x === Infinity ? "infinite" : `${x.toFixed(4)} ${state.base}`);
        spoken.textContent = `KL of P from Q is ${said(pq)}, of Q from P ${said(qp)}.`;
      }, 400);
    }

    const legend = element("p", { class: "kl-legend" },
      element("span", { class: "kl-key kl-p" }, "P"), element("span", { class: "kl-key kl-q" }, "Q"),
      " Drag a bar, or focus it and press the arrow keys; the others keep their proportions.");
    root.replaceChildren(presets, results, legend, picture, units, table, spoken);
    update({});
  }

  document.querySelectorAll(".kl-figure").forEach(start);
})();
