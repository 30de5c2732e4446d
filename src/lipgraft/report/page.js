"use strict";
// What moves on the page: the list of images, the counterexample under a click, hints under the pointer, the comparison.
// Everything is built as elements and text, never as HTML, so that no name and no other report can bring in markup.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const first = 25, more = 100;
  const count = new Intl.NumberFormat("en");

  function make(tag, properties, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(properties || {})) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (key in element) element[key] = value;
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  const short = value => (value === null ? "–" : String(Number(value.toPrecision(3))));

  // A run as the page's data has it, its verdicts by the number of their image.
  function opened(content, source) {
    const run = { ...content, source };
    run.models = content.models.map((model, i) => ({
      run, title: model.title, values: model.values, colour: "c" + (i % page.colours),
      images: new Map(model.images.map(([index, label, status, method, reason, seconds, margin]) => [index, {
        label, status: page.statuses[status], method: run.words[method] || "", reason: run.words[reason] || "", seconds, margin,
      }])),
    }));
    return run;
  }

  const className = (run, label) => run.classes[label] || "class " + label;

  function numbers(verdict) {
    const parts = [verdict.status + (verdict.method ? " by " + verdict.method : "")];
    if (verdict.reason) parts.push(verdict.reason);
    parts.push(short(verdict.seconds) + " s");
    if (verdict.margin !== null) parts.push("margin " + short(verdict.margin));
    return parts.join(", ");
  }

  // --- hints: of a cell, of a mark in a figure, of a button that has the focus

  const hint = make("div", { id: "hint", hidden: true, ariaHidden: "true" });
  function show(owner, x, y) {
    hint.textContent = owner.dataset.hint;
    (owner.closest("dialog") || document.body).append(hint);
    hint.hidden = false;
    const box = hint.getBoundingClientRect(), right = document.documentElement.clientWidth - box.width - 8;
    hint.style.left = Math.max(8, Math.min(x + 12, right)) + "px";
    hint.style.top = (y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18) + "px";
  }
  const owner = event => event.target instanceof Element ? event.target.closest("[data-hint]") : null;
  document.addEventListener("pointermove", event => {
    if (owner(event)) show(owner(event), event.clientX, event.clientY);
    else hint.hidden = true;
  });
  document.addEventListener("focusin", event => {
    if (!owner(event) || !event.target.matches(":focus-visible")) { hint.hidden = true; return; }
    const box = event.target.getBoundingClientRect();
    show(owner(event), box.right, box.top);
  });
  document.addEventListener("scroll", () => { hint.hidden = true; }, { capture: true, passive: true });
  document.addEventListener("keydown", event => { if (event.key === "Escape") hint.hidden = true; });

  // The numbers of a figure: under the pointer, and as a list for those who use none.
  for (const figure of document.querySelectorAll("figure")) {
    const marks = [...figure.querySelectorAll("svg title")];
    for (const mark of marks) mark.parentElement.dataset.hint = mark.textContent;
    if (marks.length) {
      const items = marks.map(mark => make("li", {}, mark.textContent));
      figure.querySelector("figcaption").before(make("details", {}, make("summary", {}, "Numbers"), make("ul", {}, ...items)));
    }
    for (const mark of marks) mark.remove();
  }

  // --- one image: its pictures, counterexamples and numbers

  const dialog = make("dialog", { id: "image", "aria-labelledby": "image-title" });
  document.body.append(dialog);
  dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });

  const card = (run, index) => (run.source ? null : document.querySelector(`[data-card="${run.key}${index}"]`));

  // steps: the images that the list shows, in its order.
  function openImage(models, index, steps) {
    const place = steps.indexOf(index), one = models[0];
    const title = make("h2", { id: "image-title", tabIndex: -1 }, `Image ${index}: ${className(one.run, one.images.get(index).label)}`);
    const step = (words, by) => make("button", {
      type: "button", disabled: !(place + by in steps), onclick: () => openImage(models, steps[place + by], steps),
    }, words);
    const cards = [...new Set(models.map(model => card(model.run, index)))].filter(Boolean);
    const pictures = cards.flatMap(found => [...found.querySelectorAll(".pictures")].map(node => node.cloneNode(true)));
    const rows = models.map(model => {
      const verdict = model.images.get(index);
      return make("tr", {}, make("th", { scope: "row" }, model.title), make("td", { className: verdict.status }, verdict.status),
        make("td", {}, verdict.reason || verdict.method || "–"), make("td", {}, short(verdict.seconds)), make("td", {}, short(verdict.margin)));
    });
    const heads = ["Model", "Verdict", "By", "Seconds", "Margin"].map(words => make("th", { scope: "col" }, words));
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
    dialog.replaceChildren(
      make("div", { className: "bar" }, step("Previous", -1), step("Next", 1),
        make("button", { type: "button", onclick: () => dialog.close() }, "Close")),
      title,
      ...(pictures.length ? pictures : [make("p", { className: "soft" }, "This page has no picture of this image.")]),
      make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Numbers of this image" }, table));
    dialog.onkeydown = event => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by && place + by in steps && !event.target.closest(".scroll")) openImage(models, steps[place + by], steps);
    };
    if (!dialog.open) dialog.showModal();
    title.focus();
  }

  // --- the list of images, which filters the cards beside it too

  const cells = {
    verdict: verdict => [verdict.status, page.statuses.indexOf(verdict.status)],
    "decided by": verdict => [verdict.reason || verdict.method || "–", verdict.reason || verdict.method],
    seconds: verdict => [short(verdict.seconds), verdict.seconds],
    margin: verdict => [short(verdict.margin), verdict.margin],
  };

  function choice(label, options) {
    const select = make("select", {}, ...options.map(([value, words]) => make("option", { value }, words)));
    return [select, make("label", {}, label, select)];
  }

  // host: what gets the controls and the table. images: their numbers, which every model has a verdict on.
  function list(host, models, images, strip) {
    const run = models[0].run, label = index => models[0].images.get(index).label;
    const verdicts = index => models.map(model => model.images.get(index));
    const there = page.statuses.filter(status => images.some(index => verdicts(index).some(v => v.status === status)));
    const labels = [...new Set(images.map(label))].sort((a, b) => a - b);
    const several = models.length > 1;
    const [model, modelLabel] = choice("Model", [["", several ? "any" : models[0].title], ...(several ? models.map((m, i) => [i, m.title]) : [])]);
    const [verdict, verdictLabel] = choice("Verdict", [["", "any"], ...there.map(s => [s, s]), ...(several ? [["differ", "models differ"]] : [])]);
    const [kind, kindLabel] = choice("Class", [["", "any"], ...labels.map(l => [l, className(run, l)])]);
    const [shown, shownLabel] = choice("Cells show", Object.keys(cells).map(key => [key, key]));
    const said = make("p", { role: "status", className: "soft" });
    const body = make("tbody"), head = make("tr");
    const further = make("button", { type: "button", onclick: () => { limit += more; draw(); body.rows[limit - more].querySelector("button").focus(); } });
    let limit = first, sorted = { by: -1, up: true }; // -1: the image's number, -2: its class, else a model

    function matches(index) {
      const all = verdicts(index);
      if (kind.value !== "" && label(index) !== Number(kind.value)) return false;
      if (verdict.value === "differ") {
        const chosen = model.value === "" ? all[0] : all[model.value];
        return all.some(v => v.status !== chosen.status);
      }
      return verdict.value === "" || (model.value === "" ? all : [all[model.value]]).some(v => v.status === verdict.value);
    }

    function value(index) {
      if (sorted.by === -1) return index;
      return sorted.by === -2 ? className(run, label(index)) : cells[shown.value](models[sorted.by].images.get(index))[1];
    }

    function ordered(indices) {
      const keyed = indices.map(index => [value(index), index]), way = sorted.up ? 1 : -1;
      keyed.sort(([a, i], [b, j]) => {
        if (a === null || b === null) return (a === null) - (b === null) || i - j; // what is not known stands last
        const order = typeof a === "string" ? a.localeCompare(b) : a - b;
        return way * order || i - j;
      });
      return keyed.map(([, index]) => index);
    }

    function row(index, steps) {
      const name = className(run, label(index)), all = verdicts(index);
      const button = make("button", {
        type: "button", ariaLabel: `Image ${index}, ${name}: pictures and numbers`, onclick: () => openImage(models, index, steps),
      }, String(index));
      button.dataset.hint = models.map((m, i) => `${m.title}: ${numbers(all[i])}`).join("\n");
      const found = card(run, index);
      if (found) button.prepend(make("img", { src: found.querySelector("img").src, alt: "" }));
      return make("tr", {}, make("th", { scope: "row" }, button), make("td", {}, name), ...all.map((v, i) => {
        const cell = make("td", { className: v.status }, cells[shown.value](v)[0]);
        cell.dataset.hint = `${models[i].title}: ${numbers(v)}`;
        return cell;
      }));
    }

    function draw() {
      const found = ordered(images.filter(matches));
      body.replaceChildren(...found.slice(0, limit).map(index => row(index, found)));
      said.textContent = `${count.format(found.length)} of ${count.format(images.length)} images` +
        (found.length > limit ? `, the first ${count.format(limit)} of them shown` : "");
      further.hidden = found.length <= limit;
      further.textContent = `Show ${count.format(Math.min(more, found.length - limit))} more`;
      [...head.cells].forEach((cell, i) => {
        const by = i < 2 ? -1 - i : i - 2;
        if (by === sorted.by) cell.ariaSort = sorted.up ? "ascending" : "descending";
        else cell.removeAttribute("aria-sort");
      });
      if (!strip) return;
      for (const one of strip.children) one.hidden = !found.includes(Number(one.dataset.index));
      const places = [...strip.children].sort((a, b) => found.indexOf(Number(a.dataset.index)) - found.indexOf(Number(b.dataset.index)));
      strip.append(...places);
    }

    const sort = by => () => { sorted = { by, up: sorted.by !== by || !sorted.up }; draw(); };
    const column = (by, ...words) => make("th", { scope: "col" }, make("button", { type: "button", onclick: sort(by) }, ...words));
    head.append(column(-1, "Image"), column(-2, "Class"),
      ...models.map((m, i) => column(i, make("span", { className: "swatch " + m.colour, ariaHidden: "true" }), m.title)));
    for (const control of [model, verdict, kind, shown]) control.addEventListener("change", () => { limit = first; draw(); });
    const controls = make("fieldset", { className: "controls" }, make("legend", {}, "Filter"),
      ...(several ? [modelLabel] : []), verdictLabel, kindLabel, shownLabel);
    host.prepend(controls, said);
    host.append(make("div", { className: "card scroll list", tabIndex: 0, role: "region", ariaLabel: "All images" },
      make("table", {}, make("thead", {}, head), body)), further);
    draw();
    for (const one of strip ? strip.children : []) {
      const title = one.querySelector("h3"), index = Number(one.dataset.index);
      const open = () => openImage(models, index, ordered(images.filter(matches)));
      title.replaceChildren(make("button", { type: "button", onclick: open }, ...title.childNodes));
      for (const pictures of one.querySelectorAll(".pictures")) pictures.addEventListener("click", open);
    }
  }

  const common = models => [...models[0].images.keys()].filter(index => models.every(m => m.images.has(index))).sort((a, b) => a - b);

  const runs = page.runs.map(run => opened(run, ""));
  for (const host of document.querySelectorAll("[data-run]")) {
    const models = runs[host.dataset.run].models, images = common(models);
    if (images.length) list(host, models, images, host.querySelector(".strip"));
  }

  // --- two models beside each other, of this page or of other reports

  const compare = document.getElementById("compare");
  if (!compare) return;
  const everything = runs.flatMap(run => run.models);
  const sides = ["First", "Second"].map(words => choice(words, []));
  const result = make("div"), told = make("p", { role: "status" });

  const runTitle = run => run.title + (run.source ? ` (${run.source})` : "");
  const fullTitle = model => (everything.at(-1).run === runs[0] ? model.title : `${model.title}, ${runTitle(model.run)}`);

  function fill() {
    for (const [select] of sides) {
      const before = select.value;
      select.replaceChildren(...everything.map((model, i) => make("option", { value: i }, fullTitle(model))));
      if (before) select.value = before;
    }
  }

  function difference(column, a, b) {
    if (a === null || b === null) return "–";
    const by = (b - a) * (column.share ? 100 : 1);
    return (by > 0 ? "+" : by < 0 ? "−" : "") + (column.share ? Math.abs(by).toFixed(1) : short(Math.abs(by)));
  }

  function table(label, heads, rows) {
    const cell = (words, i) => make(i ? "td" : "th", i ? {} : { scope: "row" }, words);
    return make("div", { className: "card scroll", tabIndex: 0, role: "region", ariaLabel: label }, make("table", {}, make("caption", {}, label),
      make("thead", {}, make("tr", {}, ...heads.map(words => make("th", { scope: "col" }, words)))),
      make("tbody", {}, ...rows.map(row => make("tr", {}, ...row.map(cell))))));
  }

  function drawComparison() {
    const pair = sides.map(([select]) => everything[select.value]);
    const [a, b] = pair;
    const titles = pair.map(fullTitle);
    const figure = (column, value) => (value === null ? "–" : column.share ? (100 * value).toFixed(1) : short(value));
    const figures = page.columns.map((column, i) => [column.head, figure(column, a.values[i]), figure(column, b.values[i]), difference(column, a.values[i], b.values[i])]);
    result.replaceChildren(table("Figures", ["Measure", ...titles, "Difference"], figures));
    const shared = a.run.data === b.run.data && a.run.held_out === b.run.held_out ? common(pair) : [];
    const alike = shared.every(index => a.images.get(index).label === b.images.get(index).label);
    const words = [a.run.radius === b.run.radius ? `Both at eps ${a.run.radius}.` : `The first at eps ${a.run.radius}, the second at eps ${b.run.radius}.`];
    if (!shared.length || !alike) {
      words.push("They have no image in common, so that only their figures can be compared.");
    } else {
      const changed = shared.filter(index => a.images.get(index).status !== b.images.get(index).status).length;
      words.push(`${count.format(changed)} of ${count.format(shared.length)} common images have different verdicts.`);
      const there = page.statuses.filter(status => shared.some(index => pair.some(m => m.images.get(index).status === status)));
      const tally = (one, other) => shared.filter(index => a.images.get(index).status === one && b.images.get(index).status === other).length;
      result.append(table("Images by both verdicts", [`Rows: ${titles[0]}; columns: ${titles[1]}`, ...there], there.map(one => [one, ...there.map(other => count.format(tally(one, other)))])));
      const host = make("div", { className: "images" });
      result.append(host);
      list(host, pair.map((model, i) => ({ ...model, title: titles[i], colour: "c" + (i + 1) })), shared, null);
    }
    told.textContent = words.join(" ");
  }

  // What another page knows, or null where it is none of ours. Its scripts do not run here.
  function dataOf(text) {
    const other = new DOMParser().parseFromString(text, "text/html").getElementById("data");
    try {
      const content = JSON.parse(other ? other.textContent : "null");
      return content && content.format === page.format ? content : null;
    } catch (error) {
      if (error instanceof SyntaxError) return null;
      throw error;
    }
  }

  async function read(event) {
    const failed = [], files = [...event.target.files];
    event.target.value = ""; // so that the same file can be given again once it has changed
    for (const file of files) {
      const content = dataOf(await file.text());
      if (content) content.runs.forEach(run => everything.push(...opened(run, `added: ${file.name}`).models));
      else failed.push(file.name);
    }
    fill();
    if (!failed.length) sides[1][0].value = everything.length - 1;
    drawComparison();
    if (failed.length) told.textContent = `${failed.join(", ")}: no report of this version of lipgraft; make it again with lipgraft report.`;
  }

  const file = make("input", { type: "file", accept: ".html", multiple: true, onchange: read });
  compare.append(make("fieldset", { className: "controls" }, make("legend", {}, "Compare"), ...sides.map(([, label]) => label),
    make("label", {}, "Add another report.html", file)), told, result);
  fill();
  sides[1][0].value = runs[0].models.length - 1;
  for (const [select] of sides) select.addEventListener("change", drawComparison);
  drawComparison();
  compare.hidden = false;
})();
