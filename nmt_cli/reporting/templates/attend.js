"use strict";
const D = JSON.parse(document.getElementById("data").textContent), $ = id => document.getElementById(id);
const MEAN = 0, now = { sentence: 0, role: D.role, layer: D.layer, head: D.head, from: 0 };  // layers and heads from 1

function make(parent, name, attributes, text) {
  const node = document.createElementNS(name.startsWith("svg:") ? "http://www.w3.org/2000/svg" : parent.namespaceURI, name.replace("svg:", ""));
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function sides() {  // what the rows and columns of the chosen role stand for
  const s = D.sentences[now.sentence];
  return now.role === "encoder" ? [s.src, s.src] : now.role === "decoder" ? [s.says, s.said] : [s.says, s.src];
}

function weights() {  // heads x rows x columns of the chosen layer; the mean of all heads comes first
  const [rows, columns] = sides(), size = rows.length * columns.length, heads = [];
  const raw = atob(D.sentences[now.sentence].weights[now.role]), bytes = Uint8Array.from(raw, c => c.charCodeAt(0));
  const all = new DataView(bytes.buffer);
  for (let head = 0; head < D.heads; head++) heads.push(rows.map((_, i) => {
    const start = 2 * (((now.layer - 1) * D.heads + head) * size + i * columns.length);
    const row = columns.map((_, j) => all.getUint16(start + 2 * j, true) / 65535);
    if (!$("raw").checked) return row;
    const sharper = row.map(w => w ** Math.sqrt(D.d_k)), sum = sharper.reduce((a, b) => a + b);  // softmax without the division
    return sharper.map(w => w / sum);
  }));
  return [rows.map((_, i) => columns.map((_, j) => heads.reduce((sum, h) => sum + h[i][j], 0) / D.heads)), ...heads];
}

function draw(svg, rows, cell, left, top) {
  const width = rows[0].length * cell, height = rows.length * cell;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${left + width + 2 + top / 2} ${top + height + 2}`);
  rows.forEach((row, i) => row.forEach((w, j) => {
    const never = now.role === "decoder" && j > i;  // the causal triangle
    if (never || w > 0.004) make(svg, "svg:rect", { class: never ? "never" : "heat", "fill-opacity": never ? 0.5 : w.toFixed(3),
      x: left + j * cell, y: top + i * cell, width: cell, height: cell });
  }));
  make(svg, "svg:rect", { class: "frame", x: left, y: top, width, height });
  make(svg, "svg:rect", { class: "here", x: left, width, height: cell });
}

function redraw() {
  const s = D.sentences[now.sentence], [rows, columns] = sides();
  now.weights = weights();
  now.from = Math.min(now.from, rows.length - 1);
  $("source").textContent = s.text; $("translation").textContent = s.translation;
  $("from-title").textContent = now.role === "encoder" ? "From a source piece" : "About to say";
  $("at-title").textContent = { encoder: "looks at the source", decoder: "looks at what it said so far", cross: "looks at the source" }[now.role];
  document.querySelectorAll("[data-sentence]").forEach(part => { part.hidden = +part.dataset.sentence !== now.sentence; });
  const fill = (line, labels, name) => {
    line.replaceChildren();
    labels.forEach((label, i) => {
      const token = make(line, name, { class: label.startsWith("·") ? "" : "new", dir: "auto" }, label);
      if (name !== "button") return make(token, "i", {});
      token.type = "button";
      for (const event of ["mouseenter", "focus"]) token.addEventListener(event, () => look(i));
    });
  };
  fill($("from"), rows, "button"); fill($("at"), columns, "span");
  $("heads").replaceChildren();
  now.weights.forEach((head, h) => {
    const button = make($("heads"), "button", { type: "button" });
    make(button, "b", {}, h === MEAN ? "mean" : `head ${h}`);
    draw(make(button, "svg:svg", { "aria-hidden": "true" }), head, 8, 1, 1);
    make(button, "small", { dir: "auto" });
    button.addEventListener("click", () => { now.head = h; big(); });
  });
  big();
}

function big() {
  const [rows, columns] = sides(), map = $("map"), cell = 20;
  const left = 12 + 7 * Math.max(...rows.map(r => r.length)), top = 14 + 6 * Math.max(...columns.map(c => c.length));
  draw(map, now.weights[now.head], cell, left, top);
  rows.forEach((label, i) => make(map, "svg:text", { class: "strong", x: left - 6, y: top + i * cell + 14, "text-anchor": "end" }, label));
  columns.forEach((label, j) => make(map, "svg:text", { class: "strong", transform: `translate(${left + j * cell + 13} ${top - 6}) rotate(-60)` }, label));
  rows.forEach((_, i) => make(map, "svg:rect", { "fill-opacity": 0, x: 0, y: top + i * cell, width: left + columns.length * cell, height: cell })
    .addEventListener("mouseenter", () => look(i)));
  map.dataset.top = top; map.style.maxWidth = `${(left + columns.length * cell + top / 2) * 1.4}px`;
  const which = now.head === MEAN ? "the mean of all heads" : `head ${now.head}`;
  $("which").textContent = `Layer ${now.layer} of ${D.layers}, ${which}`;
  document.querySelectorAll("#heads button").forEach((b, h) => b.setAttribute("aria-pressed", h === now.head));
  look(now.from);
}

function look(from) {  // show where row `from` looks, in the line, the map and every head
  const [rows, columns] = sides(), top = row => row.reduce((best, w, j) => (w > row[best] ? j : best), 0);
  now.from = from;
  [...$("from").children].forEach((token, i) => token.setAttribute("aria-pressed", i === from));
  const row = now.weights[now.head][from];
  [...$("at").children].forEach((token, j) => { token.firstElementChild.style.opacity = 0.85 * row[j]; token.title = row[j].toFixed(3); });
  $("map").querySelector(".here").setAttribute("y", +$("map").dataset.top + from * 20);
  document.querySelectorAll("#heads button").forEach((button, h) => {
    const best = top(now.weights[h][from]);
    button.querySelector(".here").setAttribute("y", 1 + 8 * from);
    button.querySelector("small").textContent = `→ ${columns[best]} ${now.weights[h][from][best].toFixed(2)}`;
  });
  const order = row.map((w, j) => [w, j]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  $("status").textContent = `“${rows[from]}” → ` + order.map(([w, j]) => `${columns[j]} ${w.toFixed(2)}`).join(", ");
}

for (const name of ["sentence", "role", "layer"]) $(name).addEventListener("change", event => {
  now[name] = name === "role" ? event.target.value : +event.target.value;
  if (name !== "layer") now.from = D.sentences[now.sentence].focus[now.role];
  redraw();
});
$("raw").addEventListener("change", redraw);
document.addEventListener("keydown", event => {  // arrows walk along the tokens
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], here = document.activeElement;
  if (step && here.parentElement.id === "from") (step > 0 ? here.nextElementSibling : here.previousElementSibling)?.focus();
});
now.from = D.sentences[0].focus[now.role];
redraw();
