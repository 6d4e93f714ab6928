"use strict";
// Data files call perf.put(name, value); pages ask with perf.get(name).
const perf = (() => {
  const kept = new Map(), waiting = new Map();
  const put = (name, value) => {
    kept.set(name, value);
    for (const done of waiting.get(name) || []) done(value);
    waiting.delete(name);
  };
  // A script element is the one way to read a file beside the page that works from file://.
  const get = (name, path) => new Promise((done, fail) => {
    if (kept.has(name)) return done(kept.get(name));
    const others = waiting.get(name);
    if (others) { others.push(done); return; }
    waiting.set(name, [done]);
    const script = document.createElement("script");
    script.src = document.body.dataset.up + path;
    script.onerror = () => { waiting.delete(name); fail(new Error(path + " is not there")); };
    document.head.append(script);
  });
  const numbers = (text) => {
    if (!text) return null;
    const raw = atob(text.slice(1)), bytes = new Uint8Array(raw.length);
    for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
    return text[0] === "4" ? new Float32Array(bytes.buffer) : new Float64Array(bytes.buffer);
  };
  const figures = (value) => {
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en-US");
    return size >= 1e-3 && size < 1e6 ? Number(value.toPrecision(4)).toLocaleString("en-US", {maximumFractionDigits: 6})
      : String(Number(value.toPrecision(4)));
  };
  const quantity = (value, unit) => Number.isNaN(value) ? "-" : unit ? figures(value) + " " + unit : figures(value);
  const percent = (size) => {
    if (Number.isNaN(size)) return "-";
    if (!Number.isFinite(size)) return size > 0 ? "from 0" : "to below 0";
    const part = 100 * size, digits = Math.abs(part) >= 1 || part === 0 ? 1 : Math.min(6, 1 - Math.floor(Math.log10(Math.abs(part))));
    return (part < 0 ? "" : "+") + part.toFixed(digits) + " %";
  };
  const element = (name, attributes, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const readHash = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const writeHash = (values) => {
    const kept = new URLSearchParams();
    for (const [key, value] of Object.entries(values)) if (value) kept.set(key, value);
    const text = kept.toString();
    try { history.replaceState(null, "", text ? "#" + text : location.pathname + location.search); } catch { /* file:// */ }
  };
  return {put, get, numbers, quantity, percent, element, readHash, writeHash};
})();

(() => {
  const root = document.documentElement;
  const remember = (key, value) => { try { localStorage.setItem(key, value); } catch { /* not allowed */ } };
  const recall = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const themes = ["", "light", "dark"];
  const setTheme = (theme) => { if (theme) root.dataset.theme = theme; else delete root.dataset.theme; };
  setTheme(recall("ascend-perf-theme") || "");
  const nextTheme = () => {
    const theme = themes[(themes.indexOf(root.dataset.theme || "") + 1) % themes.length];
    setTheme(theme);
    remember("ascend-perf-theme", theme);
    document.getElementById("theme").textContent = "Theme" + (theme ? ": " + theme : "");
    document.dispatchEvent(new Event("themechange"));
  };

  const KEYS = [["/", "search"], ["j, k", "next, previous row"], ["Enter", "open the row"], ["Esc", "clear search and filters"],
    ["t", "theme"], ["g o", "overview"], ["g e", "events"], ["g c", "compare"], ["g v", "compilers"], ["g h", "health"], ["?", "this list"]];
  const showKeys = () => {
    let box = document.getElementById("key-list");
    if (!box) {
      const list = perf.element("dl", {}, ...KEYS.flatMap(([key, what]) =>
        [perf.element("dt", {}, perf.element("code", {}, key)), perf.element("dd", {}, what)]));
      const close = perf.element("button", {type: "button"}, "Close");
      box = perf.element("dialog", {id: "key-list"}, perf.element("h2", {}, "Keys"), list, close);
      close.addEventListener("click", () => box.close());
      document.body.append(box);
    }
    if (!box.open) box.showModal();
  };

  const rows = () => [...document.querySelectorAll("table.filtered tbody tr[tabindex]:not([hidden])")].filter((row) => row.offsetParent);
  const move = (step) => {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement.closest("tr"));
    const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step))];
    next.focus();
    next.scrollIntoView({block: "nearest"});
  };

  let chord = "";
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape" && document.getElementById("clear")) { document.getElementById("clear").click(); event.target.blur(); return; }
    if (typing) return;
    const up = document.body.dataset.up;
    if (chord === "g") {
      chord = "";
      const to = {o: "index", e: "events", c: "compare", v: "compilers", h: "health"}[event.key];
      if (to) location.href = up + to + ".html";
      return;
    }
    const search = document.getElementById("search");
    if (event.key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
    else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
    else if (event.key === "t") nextTheme();
    else if (event.key === "g") chord = "g";
    else if (event.key === "?") showKeys();
    else if (event.key === "Enter" && event.target.matches("tr[tabindex]")) event.target.querySelector("a").click();
  };

  const unfold = (table) => {
    table.classList.add("all");
    const button = table.closest("section").querySelector(".unfold");
    if (button) button.hidden = true;
  };

  // Filters: every select names an attribute of the rows; a row without that attribute is not asked.
  const filtering = () => {
    const form = document.querySelector("form.filters[role=search]");
    if (!form) return;
    const search = document.getElementById("search"), said = document.getElementById("match-count");
    const selects = [...form.querySelectorAll("[data-filter]")];
    const targets = [...document.querySelectorAll("table.filtered tbody tr, .filtered-tiles > *")];
    const texts = new Map(targets.map((one) => [one, one.textContent.toLowerCase()]));
    const apply = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0, of = 0;
      for (const one of targets) {
        const keep = words.every((word) => texts.get(one).includes(word)) && selects.every((select) => {
          const have = one.dataset[select.dataset.filter];
          return !select.value || have === undefined || have.split("|").includes(select.value);
        });
        one.hidden = !keep;
        if (one.closest("table.events")) { of++; count += keep; }
      }
      const active = words.length || selects.some((select) => select.value);
      for (const table of document.querySelectorAll("table.events")) if (active) unfold(table);
      said.textContent = active ? count + " of " + of + " events" : "";
      perf.writeHash({q: search.value, ...Object.fromEntries(selects.map((select) => [select.dataset.filter, select.value]))});
    };
    const restore = perf.readHash();
    if (restore.get("q")) search.value = restore.get("q");
    for (const select of selects) {
      const value = restore.get(select.dataset.filter);
      if (value && [...select.options].some((option) => option.value === value)) select.value = value;
    }
    search.addEventListener("input", apply);
    form.addEventListener("change", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    // The button's own reset comes after its click; rows must be right before the next key.
    document.getElementById("clear").addEventListener("click", (event) => { event.preventDefault(); form.reset(); apply(); });
    for (const pick of document.querySelectorAll("[data-pick]")) {
      pick.addEventListener("click", () => {
        const select = selects.find((one) => one.dataset.filter === "state");
        select.value = select.value === pick.dataset.pick ? "" : pick.dataset.pick;
        for (const list of pick.closest("section").querySelectorAll("details")) list.open = true;
        apply();
      });
    }
    if ([...restore.keys()].length) apply();
  };

  // The heat map: the newest value against any commit that the data file holds.
  const heat = async () => {
    const tables = [...document.querySelectorAll("table.heat")];
    if (!tables.length) return;
    const data = await perf.get("heat", "data/heat.js");
    const rows = data.rows.map(([kind, metric, machine, slug, name, better, packed, noise, states]) =>
      ({kind, metric, machine, slug, name, better, noise, states, values: perf.numbers(packed)}));
    for (const table of tables) {
      const last = data.commits.findIndex(([hash]) => hash === table.dataset.newest);
      const form = table.closest("section").querySelector("form");
      const metric = form.querySelector("[data-heat=metric]"), base = form.querySelector("[data-heat=base]");
      base.replaceChildren(...data.commits.map(([hash, subject], at) =>
        perf.element("option", {value: String(at)}, hash + " " + subject)).reverse());
      const found = data.commits.findIndex(([hash]) => hash === table.dataset.base);
      base.value = String(Math.max(found, 0));
      const draw = () => {
        for (const line of table.querySelectorAll("tr")) {
          for (const cell of line.querySelectorAll(".cell")) {
            const one = rows.find((row) => row.kind === table.dataset.kind && row.machine === table.dataset.machine
              && row.slug === line.dataset.slug && row.metric === metric.value && row.name === cell.dataset.case);
            paint(cell, one, Number(base.value), last, data);
          }
        }
      };
      form.addEventListener("change", draw);
      form.addEventListener("submit", (event) => event.preventDefault());
    }
  };
  const paint = (cell, one, base, last, data) => {
    if (cell.classList.contains("fails")) return;
    let said = "·", tone = "tone0", title = cell.dataset.case + ": no value";
    if (one && one.values && Number.isFinite(one.values[last])) {
      const now = one.values[last], before = one.values[base];
      const change = now === before ? 0 : (now - before) / Math.abs(before), [, was] = one.states.filter(([at]) => at <= base).pop();
      if (Number.isNaN(change)) said = data.was[was];
      else if (Math.abs(change) < 5e-4) said = "=";
      else if (Math.abs(change) <= one.noise) said = "≈";
      else {
        const bad = one.better === "lower" ? change > 0 : change < 0;
        const step = 1 + [0.02, 0.05].filter((limit) => Math.abs(change) >= limit).length;
        said = (bad ? "▲" : "▼") + perf.percent(change);
        tone = (bad ? "worse" : "better") + step;
      }
      const then = data.was[was] === "new" ? perf.quantity(before, "") : data.states[was];
      title = cell.dataset.case + ": " + then + " → " + perf.quantity(now, "");
      if (said === "≈") {
        title += ", " + perf.percent(change) + ", which is noise up to " + (100 * one.noise).toFixed(1) + " %";
      }
    }
    cell.className = "cell " + tone;
    cell.title = title;
    cell.querySelector("b").textContent = said;
  };

  const copying = () => {
    for (const button of document.querySelectorAll(".copy")) {
      button.addEventListener("click", async () => {
        try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "copied"; }
        catch {
          const range = document.createRange();
          range.selectNodeContents(button.parentNode.querySelector("code"));
          getSelection().removeAllRanges();
          getSelection().addRange(range);
          button.textContent = "selected";
        }
      });
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", nextTheme);
    document.getElementById("keys").addEventListener("click", showKeys);
    document.addEventListener("keydown", pressed);
    for (const button of document.querySelectorAll(".unfold")) {
      button.addEventListener("click", () => unfold(button.closest("section").querySelector("table")));
    }
    filtering();
    copying();
    heat();
    root.dataset.ready = "page";
  });
})();
