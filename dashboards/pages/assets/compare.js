"use strict";
// The table of the compare page, from the data files of two commits.
(() => {
  document.addEventListener("DOMContentLoaded", async () => {
    const hashes = JSON.parse(document.body.dataset.commits), places = JSON.parse(document.body.dataset.places);
    const names = await perf.get("series", "data/series.js");
    const place = document.getElementById("compared"), said = document.getElementById("match-count");
    const search = document.getElementById("search");
    const only = document.getElementById("only-changed"), twins = document.getElementById("with-twins");
    const pick = (side, what) => document.querySelector(`[data-side=${side}][data-what=${what}]`);
    const restore = perf.readHash();
    for (const side of ["A", "B"]) {
      const at = hashes.findIndex((hash) => restore.get(side) && hash.startsWith(restore.get(side)));
      if (at >= 0) pick(side, "commit").value = String(at);
      for (const what of ["machine", "env"]) {
        const value = restore.get(side + what);
        if (value && [...pick(side, what).options].some((option) => option.value === value)) pick(side, what).value = value;
      }
    }
    const text = (at) => names.texts[at];
    const measured = (side) => (places.find(([machine, env]) => machine === pick(side, "machine").value && env === pick(side, "env").value) || [])[2];
    // An environment belongs to a machine: another machine brings its own newest one along.
    const settle = (side) => {
      const own = places.filter(([machine]) => machine === pick(side, "machine").value).map(([, env]) => env);
      if (own.length && !own.includes(pick(side, "env").value)) pick(side, "env").value = own[0];
      const have = new Set(measured(side));
      for (const option of pick(side, "commit").options) {
        option.dataset.name = option.dataset.name || option.textContent;
        option.textContent = option.dataset.name + (have.has(Number(option.value)) ? "" : " (no results here)");
      }
    };
    // Why two sides without a value in common have none.
    const missing = (side) => {
      const at = Number(pick(side, "commit").value), have = measured(side), where = pick(side, "machine").value;
      if (!have) return side + ": there are no series of " + where + " in this environment.";
      if (have.includes(at)) return "";
      const newest = have.length ? "; the newest commit that has some is " + hashes[have[have.length - 1]].slice(0, 10) : ", nor has any other commit";
      return side + ": " + hashes[at].slice(0, 10) + " has no results on " + where + " in this environment" + newest + ".";
    };
    const read = async (side) => {
      const hash = hashes[Number(pick(side, "commit").value)];
      const values = perf.numbers(await perf.get("at/" + hash, "data/at/" + hash + ".js"));
      const found = new Map();
      names.rows.forEach((row, at) => {
        if (text(row[5]) !== pick(side, "machine").value || text(row[6]) !== pick(side, "env").value) return;
        found.set([row[0], row[2], row[3], row[4], row[9]].join(), {row, value: values ? values[at] : NaN});
      });
      return found;
    };
    let turn = 0;
    const update = async () => {
      const mine = ++turn;
      for (const side of ["A", "B"]) settle(side);
      const [before, after] = await Promise.all([read("A"), read("B")]);
      if (mine !== turn) return;
      const lines = [];
      let compared = 0;
      for (const [key, b] of after) {
        const a = before.get(key);
        if (b.row[10] && !twins.checked) continue;
        const va = a ? a.value : NaN, vb = b.value;
        if (!Number.isFinite(va) && !Number.isFinite(vb)) continue;
        compared += Number.isFinite(va) && Number.isFinite(vb);
        const change = (vb - va) / va || (va === vb ? 0 : NaN);
        if (only.checked && Math.abs(change) < 5e-4) continue;
        const bad = b.row[8] ? change < 0 : change > 0;
        lines.push({row: b.row, va, vb, change, bad, words: [1, 2, 3, 4].map((at) => text(b.row[at])).join(" ").toLowerCase()});
      }
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const kept = lines.filter((one) => words.every((word) => one.words.includes(word)));
      kept.sort((a, b) => Number(b.bad) - Number(a.bad) || Math.abs(b.change || 0) - Math.abs(a.change || 0));
      place.replaceChildren(...[1, 0].map((modelled) => section(modelled, kept.filter((one) => one.row[9] === modelled))).filter(Boolean));
      const gaps = ["A", "B"].map(missing).filter(Boolean);
      const why = gaps.length ? gaps : ["no series" + (twins.checked ? "" : " beside the twins'") + " has a value on both sides."];
      if (!compared) place.prepend(perf.element("p", {class: "notice"}, "Nothing could be compared. " + why.join(" ")));
      else if (!kept.length) place.replaceChildren(perf.element("p", {}, lines.length ? "No series matches the search." : "Nothing differs in " + compared + " series."));
      said.textContent = compared ? kept.length + " shown, " + compared + " series compared" : "nothing compared";
      perf.writeHash({A: hashes[Number(pick("A", "commit").value)].slice(0, 12), B: hashes[Number(pick("B", "commit").value)].slice(0, 12),
        Amachine: pick("A", "machine").value, Bmachine: pick("B", "machine").value, Aenv: pick("A", "env").value, Benv: pick("B", "env").value});
      document.documentElement.dataset.ready = "compared";
    };
    const section = (modelled, lines) => {
      if (!lines.length) return null;
      const kind = modelled ? "modelled" : "measured", e = perf.element;
      const body = lines.slice(0, 1000).map((one) => {
        const unit = text(one.row[7]);
        return e("tr", {}, e("td", {}, e("a", {href: "kernel/" + text(one.row[0]) + ".html#case=" + encodeURIComponent(text(one.row[2]))}, text(one.row[1]))),
          e("td", {}, text(one.row[2]) || "-"), e("td", {}, text(one.row[3])), e("td", {}, text(one.row[4]) + (one.row[8] ? ", higher is better" : ", lower is better")),
          e("td", {}, perf.quantity(one.va, unit)), e("td", {}, perf.quantity(one.vb, unit)),
          e("td", {class: Math.abs(one.change) < 5e-4 ? "" : one.bad ? "worse" : "better"}, perf.percent(one.change)));
      });
      const head = e("tr", {}, ...["op", "case", "implementation", "metric", "A", "B", "change"].map((name) => e("th", {}, name)));
      const more = lines.length > 1000 ? e("p", {class: "dim"}, "and " + (lines.length - 1000) + " more") : "";
      return e("section", {class: "kind " + kind}, e("h2", {}, kind[0].toUpperCase() + kind.slice(1) + " ", e("span", {class: "badge " + kind}, kind)),
        e("div", {class: "wide", tabindex: "0"}, e("table", {}, e("thead", {}, head), e("tbody", {}, ...body))), more);
    };
    for (const form of document.querySelectorAll("main form")) {
      form.addEventListener("submit", (event) => event.preventDefault());
      form.addEventListener("input", update);
    }
    await update();
  });
})();
