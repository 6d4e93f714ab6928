"use strict";
(() => {
  const root = document.documentElement;
  const themed = [];
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    themed.forEach((draw) => draw());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themed.forEach((draw) => draw()));

  const number = (n) => Math.round(n).toLocaleString("en-US");
  const lit = (place) => {
    document.querySelectorAll("tr.lit").forEach((row) => row.classList.remove("lit"));
    if (!place) return;
    const name = place.slice(place.lastIndexOf("/") + 1);
    document.querySelectorAll("tr[data-place]").forEach((row) => {
      if (row.dataset.place === name) row.classList.add("lit");
    });
  };

  document.querySelectorAll("figure.timeline").forEach((figure) => {
    const held = JSON.parse(figure.querySelector("script").textContent);
    const bars = [];
    for (let i = 0, at = 0; i < held.bars.length; i += 8) {
      at += held.bars[i + 3];
      bars.push({
        pipe: held.bars[i], name: held.names[held.bars[i + 1]], place: held.places[held.bars[i + 2]],
        start: at, end: at + held.bars[i + 4], done: at + held.bars[i + 4] + held.bars[i + 5], wait: held.bars[i + 6],
        busy: held.bars[i + 7],
      });
    }
    const lanes = held.pipes.map((_, pipe) => bars.filter((bar) => bar.pipe === pipe));
    const canvas = figure.querySelector("canvas");
    const whole = figure.querySelector(".whole");
    const overview = figure.querySelector("svg.overview");
    const controls = figure.querySelector(".controls");
    const told = figure.querySelector(".told");
    const view = document.createElement("div");
    view.className = "window";
    whole.append(view);
    canvas.hidden = controls.hidden = false;
    const full = held.scale;
    let from = 0, to = full, over = null;
    const AXIS = 22, LANE = 40;

    const left = () => (innerWidth <= 700 ? 40 : 48);
    const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
    const inside = (bar) => bar.end > from && bar.start < to;

    function first(lane, at) {
      at -= held.joined; // ends are in order but for bars of several ops, which are shorter than this
      let low = 0, high = lane.length;
      while (low < high) {
        const mid = (low + high) >> 1;
        if (lane[mid].end < at) low = mid + 1; else high = mid;
      }
      return low;
    }

    function draw() {
      const ratio = devicePixelRatio || 1;
      const width = canvas.clientWidth, height = AXIS + LANE * lanes.length + 4;
      canvas.style.height = height + "px";
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const g = canvas.getContext("2d");
      g.scale(ratio, ratio);
      g.font = "12px system-ui, sans-serif";
      g.textBaseline = "middle";
      const l = left(), scale = (width - l) / (to - from);
      const dim = colour("--dim"), line = colour("--line"), ink = colour("--bg");
      const step = [1, 2, 5].flatMap((m) => Array.from({ length: 9 }, (_, e) => m * 10 ** e)).sort((a, b) => a - b)
        .find((s) => s * scale >= 70) || full;
      g.strokeStyle = line;
      g.fillStyle = dim;
      for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
        const x = l + (at - from) * scale;
        g.beginPath(); g.moveTo(x + 0.5, AXIS - 4); g.lineTo(x + 0.5, height); g.stroke();
        g.textAlign = x > width - 30 ? "right" : "center";
        g.fillText(number(at), x, AXIS / 2);
      }
      lanes.forEach((lane, pipe) => {
        const top = AXIS + LANE * pipe + 5, tall = LANE - 12;
        const own = colour("--p" + pipe), wait = colour("--wait");
        g.textAlign = "left";
        g.fillStyle = dim;
        g.fillText(held.pipes[pipe], 0, top + tall / 2);
        // What is narrower than three pixels is drawn as how busy the pipe is there.
        const runs = new Float64Array(Math.ceil(width) + 1), waits = new Float64Array(runs.length);
        for (let i = first(lane, from); i < lane.length && lane[i].start < to; i++) {
          const bar = lane[i];
          const a = Math.max(l, l + (bar.start - from) * scale), b = Math.min(width, l + (bar.end - from) * scale);
          const part = bar.end > bar.start ? bar.busy / (bar.end - bar.start) : 0;
          if (b - a < 3 || part < 1) {
            const into = bar.wait ? waits : runs;
            for (let x = Math.floor(a); x < b; x++) into[x] += part * Math.max(0, Math.min(b, x + 1) - Math.max(a, x));
            continue;
          }
          const next = lane[i + 1] ? lane[i + 1].start : Infinity;
          const tail = Math.min(width, l + (Math.min(bar.done, next) - from) * scale);
          g.fillStyle = own;
          g.globalAlpha = 0.4;
          for (let x = b + 1; x < tail; x += 4) g.fillRect(x, top + tall / 2 - 1, Math.min(2, tail - x), 2);
          g.globalAlpha = 1;
          g.fillStyle = bar.wait ? wait : own;
          g.fillRect(a, top, b - a - 0.7, tall);
          if (b - a > 34 && !bar.wait) {
            g.save();
            g.beginPath(); g.rect(a, top, b - a - 2, tall); g.clip();
            g.fillStyle = ink;
            g.fillText(bar.name, a + 4, top + tall / 2);
            g.restore();
          }
        }
        for (const [cells, fill] of [[waits, wait], [runs, own]]) {
          g.fillStyle = fill;
          cells.forEach((cell, x) => {
            if (!cell) return;
            const stacked = cells === waits ? cell + runs[x] : cell;
            const high = Math.max(2, tall * Math.min(1, stacked));
            g.fillRect(x, top + tall - high, 1, high);
          });
        }
        if (over && over.pipe === pipe && inside(over)) {
          const a = Math.max(l, l + (over.start - from) * scale), b = Math.min(width, l + (over.end - from) * scale);
          g.strokeStyle = colour("--fg");
          g.lineWidth = 1.5;
          g.strokeRect(a, top - 1, Math.max(b - a, 1.5), tall + 2);
          g.lineWidth = 1;
        }
      });
      const w = overview.clientWidth;
      view.hidden = from <= 0 && to >= full;
      view.style.left = whole.clientWidth - w + (from / full) * w + "px";
      view.style.width = ((to - from) / full) * w + "px";
    }

    function show(a, b) {
      const least = Math.min(full, 20);
      let size = Math.min(full, Math.max(least, b - a));
      a = Math.min(Math.max(0, a), full - size);
      from = a;
      to = a + size;
      draw();
    }
    const zoom = (factor, at = (from + to) / 2) => show(at - (at - from) * factor, at + (to - at) * factor);
    const cycle = (event) => {
      const box = canvas.getBoundingClientRect();
      return from + ((event.clientX - box.left - left()) / (box.width - left())) * (to - from);
    };
    function at(event) {
      const box = canvas.getBoundingClientRect();
      const pipe = Math.floor((event.clientY - box.top - AXIS) / LANE);
      const lane = lanes[pipe];
      if (!lane || event.clientX < box.left + left()) return null;
      const here = cycle(event), slack = ((to - from) / box.width) * 3;
      const i = first(lane, here - slack);
      return lane[i] && lane[i].start <= here + slack ? lane[i] : null;
    }
    function tell(bar) {
      if (bar === over) return;
      over = bar;
      const late = bar && bar.done > bar.end ? `, result there at ${number(bar.done)}` : "";
      told.textContent = bar
        ? `${held.pipes[bar.pipe]} ${bar.name}${bar.place ? ", " + bar.place : ""}: cycles ${number(bar.start)} to ` +
          `${number(bar.end)} (${number(bar.end - bar.start)})${late}`
        : "\u00a0";
      lit(bar && bar.place);
      draw();
    }

    const button = (label, title, act) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = label;
      made.title = title;
      made.addEventListener("click", act);
      controls.append(made);
    };
    button("+", "zoom in (+)", () => zoom(0.5));
    button("−", "zoom out (-)", () => zoom(2));
    button("whole", "the whole program (0)", () => show(0, full));
    const hint = document.createElement("span");
    hint.textContent = "drag to move, Ctrl and wheel or pinch to zoom, click in the strip above to go there";
    controls.append(hint);

    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, cycle(event));
      else show(from + (event.deltaX / canvas.clientWidth) * (to - from), to + (event.deltaX / canvas.clientWidth) * (to - from));
    }, { passive: false });
    let grab = null;
    canvas.addEventListener("pointerdown", (event) => {
      grab = { x: event.clientX, from, to };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!grab) return tell(at(event));
      const moved = ((grab.x - event.clientX) / (canvas.clientWidth - left())) * (grab.to - grab.from);
      show(grab.from + moved, grab.to + moved);
    });
    const release = () => { grab = null; };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => { if (!grab) tell(null); });
    canvas.addEventListener("dblclick", (event) => zoom(0.4, cycle(event)));
    canvas.addEventListener("keydown", (event) => {
      const size = to - from;
      const acts = {
        ArrowLeft: () => show(from - size / 5, to - size / 5), ArrowRight: () => show(from + size / 5, to + size / 5),
        "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => show(0, full),
      };
      if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      acts[event.key]();
    });
    overview.addEventListener("click", (event) => {
      const box = overview.getBoundingClientRect();
      const here = ((event.clientX - box.left) / box.width) * full, size = to - from >= full ? full / 8 : to - from;
      show(here - size / 2, here + size / 2);
    });
    new ResizeObserver(draw).observe(canvas);
    themed.push(draw);
    draw();
  });
})();
