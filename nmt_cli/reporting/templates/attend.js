"use strict";
const D = JSON.parse(document.getElementById("data").textContent), $ = id => document.getElementById(id);
const MEAN = 0, now = { sentence: 0, role: D.role, layer: D.layer, head: D.head, from: 0 };  // layers and heads count from 1
const PRONOUNS = " it its they them their he him she her er ihn ihm sie es ihnen il elle ils elles ";

function make(parent, name, attributes, text) {
  const node = document.createElementNS(name.startsWith("svg:") ? "http://www.w3.org/2000/svg" : parent.namespaceURI, name.replace("svg:", ""));
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

const sum = row => row.reduce((a, b) => a + b, 0);
const mean = maps => maps[0].map((row, i) => row.map((_, j) => sum(maps.map(map => map[i][j])) / maps.length));
const names = (role = now.role) => D.sentences[now.sentence].names[role];  // [labels of rows, labels of columns]

function sharper(row) {  // the softmax without the division by √d_k
  const powers = row.map(w => w ** Math.sqrt(D.d_k)), total = sum(powers);
  return powers.map(w => w / total);
}

function weights(role, raw = $("raw").checked) {  // layers x heads x rows x columns
  const shown = row => (raw ? sharper(row) : row.map(w => w / 10000));
  return D.sentences[now.sentence].weights[role].map(layer => layer.map(head => head.map(shown)));
}

function draw(svg, map, { cell, left = 1, top = 1, causal = false }) {
  const width = map[0].length * cell, height = map.length * cell;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${left + width + 2 + top / 2} ${top + height + 2}`);
  map.forEach((row, i) => row.forEach((w, j) => {
    const never = causal && j > i;  // masked, because a token does not attend to later ones
    if (never || w > 0.004) make(svg, "svg:rect", { class: never ? "never" : "heat", "fill-opacity": never ? 0.5 : w.toFixed(3),
      x: left + j * cell, y: top + i * cell, width: cell, height: cell });
  }));
  make(svg, "svg:rect", { class: "frame", x: left, y: top, width, height });
}

function drawNamed(svg, rows, columns, map, cell, causal) {  // returns the left edge, the top edge and the width of the map
  const left = 12 + 7 * Math.max(...rows.map(r => r.length)), top = 14 + 6 * Math.max(...columns.map(c => c.length));
  draw(svg, map, { cell, left, top, causal });
  rows.forEach((label, i) => make(svg, "svg:text", { class: "strong", x: left - 6, y: top + (i + 0.7) * cell, "text-anchor": "end" }, label));
  columns.forEach((label, j) => make(svg, "svg:text", { class: "strong", transform: `translate(${left + (j + 0.65) * cell} ${top - 6}) rotate(-60)` }, label));
  svg.style.maxWidth = `${(left + columns.length * cell + top / 2) * 1.4}px`;
  return { left, top, width: columns.length * cell };
}

function redraw() {
  const s = D.sentences[now.sentence], [rows, columns] = names(), layers = D.layers[now.role];
  now.layer = Math.min(now.layer, layers);  // the role chosen before may have more layers
  $("layer").replaceChildren();
  for (let n = 1; n <= layers; n++) make($("layer"), "option", { value: n }, `${n} of ${layers}`);
  $("layer").value = now.layer;
  now.all = weights(now.role);
  now.maps = [mean(now.all[now.layer - 1]), ...now.all[now.layer - 1]];
  now.from = Math.min(now.from, rows.length - 1);
  $("source").textContent = s.text; $("translation").textContent = s.translation;
  $("from-title").textContent = now.role === "encoder" ? "Source token" : "Predicted token";
  $("at-title").textContent = now.role === "decoder" ? "attends to the output so far" : "attends to the source";
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
  now.maps.forEach((map, h) => {
    const button = make($("heads"), "button", { type: "button" });
    make(button, "b", {}, h === MEAN ? "mean" : `head ${h}`);
    const svg = make(button, "svg:svg", { "aria-hidden": "true" });
    draw(svg, map, { cell: 8, causal: now.role === "decoder" });
    make(svg, "svg:rect", { class: "here", x: 1, width: 8 * columns.length, height: 8 });
    make(button, "small", { dir: "auto" });
    button.addEventListener("click", () => { now.head = h; big(); });
  });
  scale();
  big();
}

function big() {
  const [rows, columns] = names(), map = $("map"), cell = 20;
  const { left, top, width } = drawNamed(map, rows, columns, now.maps[now.head], cell, now.role === "decoder");
  make(map, "svg:rect", { class: "here", x: left, width, height: cell });
  rows.forEach((_, i) => make(map, "svg:rect", { "fill-opacity": 0, x: 0, y: top + i * cell, width: left + width, height: cell })
    .addEventListener("mouseenter", () => look(i)));
  map.dataset.top = top;
  $("which").textContent = `Layer ${now.layer} of ${D.layers[now.role]}, ${now.head === MEAN ? "the mean of all heads" : `head ${now.head}`}`;
  document.querySelectorAll("#heads button").forEach((b, h) => b.setAttribute("aria-pressed", h === now.head));
  look(now.from);
}

function look(from) {  // show the weights of row `from` in the line, the map, every head and the rollout
  const [rows, columns] = names(), top = row => row.reduce((best, w, j) => (w > row[best] ? j : best), 0);
  now.from = from;
  [...$("from").children].forEach((token, i) => token.setAttribute("aria-pressed", i === from));
  const row = now.maps[now.head][from];
  [...$("at").children].forEach((token, j) => { token.firstElementChild.style.opacity = 0.85 * row[j]; token.title = row[j].toFixed(3); });
  $("map").querySelector(".here").setAttribute("y", +$("map").dataset.top + from * 20);
  document.querySelectorAll("#heads button").forEach((button, h) => {
    const best = top(now.maps[h][from]);
    button.querySelector(".here").setAttribute("y", 1 + 8 * from);
    button.querySelector("small").textContent = `→ ${columns[best]} ${now.maps[h][from][best].toFixed(2)}`;
  });
  const order = row.map((w, j) => [w, j]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  $("status").textContent = `“${rows[from]}” → ` + order.map(([w, j]) => `${columns[j]} ${w.toFixed(2)}`).join(", ");
  const every = now.all.flatMap((heads, l) => heads.map((map, h) => [`${l + 1}.${h + 1}`, map[from]]));
  drawNamed($("every"), every.map(e => e[0]), columns, every.map(e => e[1]), 14);
  rollout(from);
}

function rollout(from) {  // from one encoder output, or from the mix of the last cross-attention layer, down to the embeddings
  $("rollout").parentElement.hidden = now.role === "decoder";
  if (now.role === "decoder") return;
  const source = names("encoder")[0];
  const levels = [now.role === "encoder" ? source.map((_, j) => +(j === from)) : mean(now.all.at(-1))[from]];
  for (const heads of weights("encoder").reverse()) {
    const share = levels.at(-1), layer = mean(heads);
    levels.push(share.map((w, j) => 0.5 * w + 0.5 * sum(share.map((v, i) => v * layer[i][j]))));
  }
  const labels = levels.map((_, n) => (n < D.layers.encoder ? `layer ${D.layers.encoder - n}` : "embeddings"));
  drawNamed($("rollout"), labels, source, levels, 14);
}

function scale() {
  $("scale").replaceChildren();
  for (const option of $("role").options) for (const raw of [false, true]) {
    const rows = weights(option.value, raw).flat(2).filter(row => row.filter(w => w > 0).length > 1);
    const average = figure => (sum(rows.map(figure)) / rows.length).toFixed(3), line = make($("scale"), "tr", {});
    make(line, "td", {}, raw ? "" : option.textContent); make(line, "td", {}, raw ? "without" : "with");
    for (const figure of [row => Math.max(...row), row => -sum(row.map(w => w && w * Math.log2(w))), row => 1 - sum(row.map(w => w * w))])
      make(line, "td", { class: "r" }, average(figure));
  }
}

function positions({ title, largest, values }) {  // red is positive, blue is negative
  const rows = values.length, columns = values[0].length;
  const figure = make($("positions"), "figure", {}), range = `red +${largest.toPrecision(2)}, blue −${largest.toPrecision(2)}`;
  make(figure, "figcaption", {}, `${title}; down: positions 0 to ${rows - 1}; across: dimensions 0 to ${columns - 1}; ${range}`);
  const canvas = make(figure, "canvas", { class: "pixels", width: columns, height: rows, role: "img", "aria-label": title });
  const image = new ImageData(columns, rows);
  values.flat().forEach((value, i) => {
    image.data.set([...(value > 0 ? [178, 24, 43] : [33, 102, 172]).map(c => 255 - Math.abs(value) / 127 * (255 - c)), 255], 4 * i);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function start() {  // start at the first pronoun, if there is one
  const rows = names()[0];
  now.from = Math.max(0, rows.findIndex((row, i) => PRONOUNS.includes(` ${row.toLowerCase()} `) && !rows[i + 1]?.startsWith("·")));
}

for (const name of ["sentence", "role", "layer"]) $(name).addEventListener("change", event => {
  now[name] = name === "role" ? event.target.value : +event.target.value;
  if (name !== "layer") start();
  redraw();
});
$("raw").addEventListener("change", redraw);
document.addEventListener("keydown", event => {  // arrow keys move along the tokens
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], here = document.activeElement;
  if (step && here.parentElement.id === "from") (step > 0 ? here.nextElementSibling : here.previousElementSibling)?.focus();
});
D.positions.forEach(positions);
start();
redraw();
