"use strict";
// Charts of kernel and event pages, drawn with plotly from the site's data files.
(() => {
  const page = document.body.dataset;
  const BAD = 1;
  // plotly reads a few tags in its texts: what comes from outside must not be one.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x-thin-open", "star", "pentagon", "cross"];

  const SIDES = 100, UNDER = 58, PLOT = 290, ENTRY = 19, LABEL = 72;
  // The legend lies below the axis' title and gets as much height as its rows need, so that it never scrolls.
  const legendHeight = (lines, width) => {
    const names = lines.filter((line) => line.showlegend !== false).map((line) => line.name.length);
    if (names.length < 2) return 0;
    const across = Math.max(1, Math.floor((width - SIDES) / (50 + 7 * Math.max(...names))));
    return ENTRY * Math.ceil(names.length / across) + 8;
  };
  const layout = (lines, width, more) => ({
    margin: {l: 80, r: 20, t: 18, b: UNDER + legendHeight(lines, width)}, height: 18 + PLOT + UNDER + legendHeight(lines, width),
    hovermode: "closest", dragmode: "zoom", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: colour("--fg"), family: "system-ui, sans-serif", size: 12},
    legend: {orientation: "h", yref: "container", y: 0, yanchor: "bottom", maxheight: 2000, font: {size: 12}}, uirevision: "keep", ...more,
  });
  const axis = (title, more) => ({
    title: {text: title, standoff: 8}, gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"),
    automargin: true, ...more,
  });
  const OPTIONS = {displaylogo: false, responsive: true, displayModeBar: "hover", doubleClick: "reset",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage", "sendDataToCloud"]};
  const draw = (place, traces, how) => Plotly.react(place, traces, layout(traces, place.clientWidth, how), OPTIONS);

  // Commits to name between two places of the axis: as many as fit beside each other, the last one always.
  const ticks = (names, width, from = -0.05 * names.length, to = 1.05 * names.length - 1) => {
    const first = Math.max(0, Math.ceil(from)), last = Math.min(names.length - 1, Math.floor(to));
    const step = Math.max(1, Math.ceil(LABEL * (to - from) / Math.max(width - SIDES, LABEL)));
    const at = [];
    for (let index = first; index <= last - step; index += step) at.push(index);
    if (last >= first) at.push(last);
    return {tickvals: at, ticktext: at.map((index) => plain(names[index]))};
  };
  const commitAxis = (names, title, place) =>
    axis(title, {tickmode: "array", ...ticks(names, place.clientWidth), tickangle: 0, showgrid: false, zeroline: false});
  // Another width or a zoom leaves room for other names.
  const follow = (place, names) => {
    const renew = () => {
      const shown = place.layout.xaxis, [from, to] = shown.autorange === false ? shown.range : [];
      const fit = ticks(names, place.clientWidth, from, to);
      if (fit.tickvals.join() === shown.tickvals.join()) return;
      Plotly.relayout(place, {"xaxis.tickvals": fit.tickvals, "xaxis.ticktext": fit.ticktext});
    };
    place.on("plotly_relayout", renew);
    let width = place.clientWidth;
    new ResizeObserver(() => {
      if (place.clientWidth === width || !place.clientWidth) return;
      width = place.clientWidth;
      const {margin, height} = layout(place.data, width);
      Plotly.relayout(place, {margin, height}).then(renew);
    }).observe(place);
  };

  // One series as plotly traces: the line, and the 99 % interval as a band where there is one.
  const traces = (one, name, at, xs, own) => {
    const shade = colour("--c" + (at % 8));
    const values = perf.numbers(one.v) || new Float32Array(xs.length).fill(NaN);
    const low = perf.numbers(one.lo), high = perf.numbers(one.hi), found = [];
    if (low && high && own) {
      const keep = xs.filter((x) => Number.isFinite(low[x]) && Number.isFinite(high[x]));
      found.push({x: keep.concat([...keep].reverse()), y: keep.map((x) => high[x]).concat([...keep].reverse().map((x) => low[x])),
        fill: "toself", fillcolor: shade, opacity: 0.18, line: {width: 0}, mode: "lines", hoverinfo: "skip", showlegend: false, name: "interval"});
    }
    const few = xs.length <= 120;
    found.push({x: xs, y: Array.from(values), name: plain(name), mode: few ? "lines+markers" : "lines", type: "scatter",
      line: {color: shade, width: own ? 2.4 : 1.2, dash: own ? "solid" : DASHES[at % 5]}, connectgaps: false,
      marker: {size: own ? 6 : 5, symbol: SYMBOLS[at % 8]}, hovertemplate: "%{y}<extra></extra>", meta: one});
    return found;
  };

  const failures = (shown, states, floor) => {
    const x = [], y = [], meta = [];
    for (const one of shown) for (const [at, state] of one.bad || []) { x.push(at); y.push(floor); meta.push([one, at, state]); }
    if (!x.length) return [];
    return [{x, y, mode: "markers", type: "scatter", name: "not ok", marker: {symbol: "x", size: 8, color: colour("--bad")},
      hovertemplate: "%{text}<extra></extra>", text: meta.map(([, , state]) => states[state]), customdata: meta}];
  };

  // Points of runs in which the device was disturbed: a ring around them.
  const doubtful = (shown) => {
    const x = [], y = [], meta = [];
    for (const one of shown) {
      const values = perf.numbers(one.v) || [];
      for (const [at, why] of Object.entries(one.doubt || {})) { x.push(+at); y.push(values[+at]); meta.push([one, +at, null, why]); }
    }
    if (!x.length) return [];
    return [{x, y, mode: "markers", type: "scatter", name: "device disturbed", marker: {symbol: "circle-open", size: 13, color: colour("--bad"), line: {width: 2}},
      hovertemplate: "%{y}<extra></extra>", customdata: meta}];
  };

  const describe = (place, names, subjects, states) => (event) => {
    const point = event.points[0], at = point.x, one = point.customdata ? point.customdata[0] : point.data.meta;
    if (!one || !Number.isInteger(at)) return;
    const state = point.customdata && point.customdata[2] !== null ? states[point.customdata[2]] : "";
    const doubt = (one.doubt || {})[at] || "";
    const code = (one.codes || []).filter(([from]) => from <= at).pop();
    const low = perf.numbers(one.lo), high = perf.numbers(one.hi);
    const interval = low && Number.isFinite(low[at]) ? " [" + perf.quantity(low[at], "") + " … " + perf.quantity(high[at], "") + ", 99 %, " + one.n + " samples]" : "";
    const words = [names[at] + " " + (subjects[at] || ""), one.impl,
      state ? state + ": " + ((one.why || {})[at] || "no reason kept") : perf.quantity(point.y, one.unit) + interval,
      code ? "code " + code[1] : "", doubt && !state ? "not to be trusted alone: " + doubt : ""];
    place.textContent = words.filter(Boolean).join(" · ");
  };

  const yTitle = (one) => {
    const unit = one.unit && one.unit !== one.metric ? ", " + one.unit : one.unit ? "" : ", no unit";
    return plain(one.metric + unit + (one.modelled ? " (modelled)" : " (measured)")) + "<br>" + plain(one.better + " is better");
  };

  const kernelChart = (kind, commits) => {
    const cases = JSON.parse(page.cases), states = JSON.parse(page.states);
    const place = document.getElementById("chart-" + kind), said = document.getElementById("point-" + kind);
    const control = (name) => document.querySelector(`[data-control=${name}][data-kind=${kind}]`);
    const hashes = commits.hash.map((one) => one.slice(0, 8)), xs = hashes.map((_, at) => at);
    let wired = false;
    const value = (name) => control(name) ? control(name).value : "";
    const update = async () => {
      const chosen = value("case") in cases ? value("case") : Object.keys(cases)[0];
      let all;
      try { all = await perf.get(cases[chosen], cases[chosen]); }
      catch (error) { place.textContent = "The data of this chart is not there: " + error.message; return; }
      const shown = all.filter((one) => one.modelled === (kind === "modelled") && one.metric === value("metric")
        && (!value("machine") || one.machine === value("machine")) && (!value("env") || one.env === value("env"))
        && (one.role !== "twin" || control("twins").checked));
      if (!shown.length) { Plotly.purge(place); place.textContent = "Nothing measured for this choice."; return; }
      if (!wired) place.replaceChildren();
      const own = (one) => one.role !== "twin";
      const lines = shown.flatMap((one, at) => traces(one, one.impl, at, xs, own(one)));
      const lowest = Math.min(...lines.flatMap((line) => line.y.filter(Number.isFinite)));
      const marks = JSON.parse(page.marks).filter((one) => one.modelled === (kind === "modelled") && shown.some((row) => row.impl === one.impl && own(row)));
      const shapes = marks.map((one) => ({type: "line", x0: one.at - 0.5, x1: one.at - 0.5, yref: "paper", y0: 0, y1: 1,
        line: {color: colour("--dim"), width: 1, dash: "dot"}}));
      const labels = marks.slice(-8).map((one) => ({x: one.at - 0.5, yref: "paper", y: 1, text: plain(one.kind), showarrow: false, xanchor: "left", font: {size: 10, color: colour("--dim")}}));
      const range = control("zero").checked ? {rangemode: "tozero"} : {};
      await draw(place, lines.concat(doubtful(shown), failures(shown, states, Number.isFinite(lowest) ? lowest : 0)),
        {xaxis: commitAxis(hashes, "commit, oldest first", place), yaxis: axis(yTitle(shown[0]), range), shapes, annotations: labels});
      if (!wired) {
        wired = true;
        follow(place, hashes);
        const tell = describe(said, hashes, commits.subject, states);
        place.on("plotly_hover", tell);
        place.on("plotly_click", tell);
      }
      for (const table of document.querySelectorAll(`section[data-kind=${kind}] [data-twins]`)) table.hidden = table.dataset.twins !== value("metric");
      place.dataset.drawn = "yes";
    };
    const wanted = perf.readHash();
    for (const name of ["case", "metric", "machine", "env"]) {
      const select = control(name), given = wanted.get(name);
      const right = !wanted.get("kind") || wanted.get("kind") === kind;
      if (select && given && right && [...select.options].some((option) => option.value === given)) select.value = given;
    }
    const changed = () => {
      perf.writeHash({kind, case: value("case"), metric: value("metric"), machine: value("machine"), env: value("env")});
      return update();
    };
    for (const one of document.querySelectorAll(`[data-control][data-kind=${kind}]`)) one.addEventListener("change", changed);
    for (const tile of document.querySelectorAll(`.tile[data-case][data-kind=${kind}]`)) {
      tile.addEventListener("click", (event) => {
        event.preventDefault();
        control("case").value = tile.dataset.case;
        changed();
        place.scrollIntoView({block: "nearest"});
      });
    }
    document.addEventListener("themechange", update);
    return update();
  };

  const roof = () => {
    const place = document.getElementById("roof");
    if (!place) return;
    const points = JSON.parse(place.dataset.points), rate = Number(place.dataset.rate);
    const most = Math.max(...points.map((one) => one[1])), least = Math.min(...points.map((one) => one[1]));
    const paint = () => draw(place, [
      {x: points.map((one) => one[1]), y: points.map((one) => one[2]), text: points.map((one) => plain(one[0])), mode: "markers",
        name: "cases", marker: {size: 9, color: colour("--c0")}, hovertemplate: "%{text}: %{x} B, %{y} cycles<extra></extra>"},
      {x: [least / 2, most * 2], y: [least / 2 / rate, most * 2 / rate], mode: "lines", name: "roof: full memory bandwidth", line: {color: colour("--c1"), dash: "dash"}, hoverinfo: "skip"},
    ], {xaxis: axis("bytes moved, B (modelled)", {type: "log"}), yaxis: axis("time, cycles (modelled)<br>lower is better", {type: "log"})});
    document.addEventListener("themechange", paint);
    return paint();
  };

  const eventChart = async () => {
    const data = await perf.get(page.event, "data/" + page.event + ".js");
    const place = document.getElementById("chart-event"), said = document.getElementById("point-event");
    const names = data.commits.map((one) => one[0].slice(0, 8)), xs = names.map((_, at) => at);
    const states = ["ok", "wrong result", "unsupported here", "compile failed", "crashed or timed out", "build failed", "not run"];
    place.replaceChildren();
    const paint = async () => {
      const lines = data.series.flatMap((one, at) => traces(one, one.impl, at, xs, at === 0));
      const finite = lines.flatMap((line) => line.y.filter(Number.isFinite));
      const shapes = [{type: "rect", x0: data.good + 0.5 - (data.good === data.bad ? 1 : 0), x1: data.bad - 0.5 + (data.bad - data.good === 1 ? 0.06 : 0), yref: "paper", y0: 0, y1: 1,
        fillcolor: colour("--focus"), opacity: 0.35, line: {color: colour("--focus"), width: 1}}];
      await draw(place, lines.concat(failures(data.series.slice(0, BAD), states, finite.length ? Math.min(...finite) : 0)),
        {xaxis: commitAxis(names, "commit, oldest first;<br>the change lies in the marked range", place), yaxis: axis(yTitle(data.series[0])), shapes});
      place.dataset.drawn = "yes";
    };
    document.addEventListener("themechange", paint);
    await paint();
    follow(place, names);
    const tell = describe(said, names, data.commits.map((one) => one[1]), states);
    place.on("plotly_hover", tell);
    place.on("plotly_click", tell);
  };

  document.addEventListener("DOMContentLoaded", async () => {
    performance.mark("start");
    if (page.page === "kernel") {
      const commits = await perf.get("commits", "data/commits.js");
      for (const kind of ["modelled", "measured"]) if (document.getElementById("chart-" + kind)) await kernelChart(kind, commits);
      roof();
    } else if (page.page === "event") await eventChart();
    document.documentElement.dataset.ready = "charts";
    performance.mark("ready");
  });
})();
