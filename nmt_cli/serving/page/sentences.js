// Shows the translation sentence by sentence, with aligned words and other translations.

const WORD = /\S+/g;
const UNSPACED = /\p{sc=Han}|\p{sc=Hiragana}|\p{sc=Katakana}|\p{sc=Thai}|\p{sc=Lao}|\p{sc=Khmer}|\p{sc=Myanmar}/u;
const SEGMENTER = new Intl.Segmenter(undefined, { granularity: "word" });
const SOURCE = 0;
const TARGET = 1;
const END = "\u200b"; // gives an empty last line its height
const EMPTY = "Nothing"; // the label of an empty translation

const element = (id) => document.getElementById(id);
const [text, mirror, translation, menu, status] = ["text", "mirror", "translation", "menu", "status"].map(element);

let sentences = []; // of the response, each with {id, choice, node, target, origin, words: [source, target]}
let after = ""; // the text after the last sentence
let rest = ""; // the text that has no translation yet
let opened = null; // the sentence with an open menu
let current = null; // the word at the keyboard cursor
let lit = []; // the highlighted words
const tail = document.createTextNode(END); // the end of the mirror, with the text that has no translation yet
const positions = new WeakMap(); // word -> {sentence, side, start, end}, in characters of the sentence

const textOf = (sentence) => sentence.hypotheses[sentence.choice].text;

export function translated() {
  return sentences.map((sentence) => sentence.before + textOf(sentence)).join("") + after;
}

// Show a response. Unchanged sentences keep their elements, so a screen reader reads only the changed ones. A
// sentence keeps the translation that the user chose for it.
export function show(answer) {
  const choices = new Map(sentences.map((sentence) => [sentence.source, textOf(sentence)]));
  const fresh = answer.sentences.map((sentence) => ({ ...sentence, id: JSON.stringify(sentence) }));
  const most = Math.min(sentences.length, fresh.length);
  let [first, last] = [0, 0]; // how many are unchanged at the start and at the end
  while (first < most && sentences[first].id === fresh[first].id) first += 1;
  while (last < most - first && sentences.at(-1 - last).id === fresh.at(-1 - last).id) last += 1;
  const kept = sentences.splice(sentences.length - last);
  for (const { node, origin } of sentences.splice(first)) [node, origin].forEach((each) => each.remove());
  const added = fresh.slice(first, fresh.length - last);
  for (const sentence of added) make(sentence, choices.get(sentence.source));
  translation.insertBefore(joined(added.map(({ node }) => node)), kept[0]?.node ?? null);
  sentences.push(...added, ...kept);
  ({ after, rest = "" } = answer);
  close();
  light(null);
  const forgotten = mirror.firstChild === tail;
  const origins = joined((forgotten ? sentences : added).map(({ origin }) => origin));
  mirror.insertBefore(origins, (!forgotten && kept[0]?.origin) || tail);
  tail.data = after + rest + END;
  if (sentences.length && !sentences.some((sentence) => sentence.target.tabIndex === 0)) sentences[0].target.tabIndex = 0;
}

function joined(nodes) {
  const fragment = document.createDocumentFragment();
  for (const node of nodes) fragment.append(node);
  return fragment;
}

function make(sentence, wanted) {
  const choice = sentence.hypotheses.findIndex((hypothesis) => hypothesis.text === wanted);
  sentence.choice = Math.max(choice, 0);
  sentence.words = [[], []];
  sentence.node = document.createElement("span");
  sentence.target = document.createElement("span");
  sentence.target.className = "sentence";
  sentence.target.tabIndex = -1;
  sentence.target.role = "button";
  sentence.target.ariaHasPopup = "listbox";
  sentence.target.ariaExpanded = "false";
  write(sentence);
  positions.set(sentence.target, { sentence });
  sentence.node.append(sentence.before, sentence.target);
  sentence.origin = document.createElement("span");
  sentence.origin.append(sentence.before, withWords(sentence.source, sentence, SOURCE));
}

function write(sentence) {
  sentence.target.replaceChildren(withWords(textOf(sentence), sentence, TARGET));
  sentence.target.ariaLabel = textOf(sentence).trim() || EMPTY;
}

// Yield each word and its index. White space separates words. In scripts without spaces, the browser's segmenter does.
function* wordsOf(string) {
  for (const { 0: run, index } of string.matchAll(WORD)) {
    if (!UNSPACED.test(run)) yield [run, index];
    else for (const part of SEGMENTER.segment(run)) if (part.isWordLike) yield [part.segment, index + part.index];
  }
}

const lengthOf = (string) => [...string].length; // code points, which the server counts

function withWords(string, sentence, side) {
  const nodes = document.createDocumentFragment();
  const words = [];
  let [end, position] = [0, 0];
  for (const [text, index] of wordsOf(string)) {
    const word = document.createElement("span");
    word.className = "word";
    word.textContent = text;
    const start = position + lengthOf(string.slice(end, index));
    position = start + lengthOf(text);
    positions.set(word, { sentence, side, start, end: position });
    words.push(word);
    nodes.append(string.slice(end, index), word);
    end = index + text.length;
  }
  nodes.append(string.slice(end));
  sentence.words[side] = words;
  return nodes;
}

// Forget the alignment, because the text has changed.
export function forget() {
  light(null);
  mirror.replaceChildren(tail);
  tail.data = text.value + END;
}

// ---- Aligned words

function partners(word) {
  const { sentence, side } = positions.get(word);
  const holds = (each, offset) => positions.get(each).start <= offset && offset < positions.get(each).end;
  const pairs = sentence.hypotheses[sentence.choice].alignment.filter((pair) => holds(word, pair[side]));
  return sentence.words[1 - side].filter((each) => pairs.some((pair) => holds(each, pair[1 - side])));
}

function light(word) {
  for (const each of lit) each.classList.remove("lit");
  lit = word ? [word, ...partners(word)] : [];
  for (const each of lit) each.classList.add("lit");
}

function wordAtPoint(event) {
  const under = document.elementsFromPoint(event.clientX, event.clientY);
  return under.find((each) => each.classList.contains("word"));
}

function wordAtCaret() {
  let end = 0;
  for (const node of [...mirror.childNodes].flatMap((origin) => [...origin.childNodes])) {
    end += node.textContent.length;
    if (text.selectionStart <= end) return positions.has(node) ? node : null;
  }
  return null;
}

function goTo(word) {
  const { target } = positions.get(word).sentence;
  if (document.activeElement !== target) target.focus();
  current = word;
  light(word);
  const others = partners(word).map((each) => each.textContent);
  status.textContent = others.length ? `${word.textContent}: ${others.join(" ")}` : word.textContent;
}

function walk(event) {
  const focused = positions.get(event.target).sentence;
  if (event.key === "Enter" || event.key === " ") open(focused);
  else if (/^(Arrow|Home|End)/.test(event.key)) go(event.key, focused);
  else return;
  event.preventDefault();
}

function go(key, focused) {
  const nonempty = sentences.filter((sentence) => sentence.words[TARGET].length);
  const words = nonempty.flatMap((sentence) => sentence.words[TARGET]);
  const [word, sentence] = [words.indexOf(current), nonempty.indexOf(focused)];
  const forward = getComputedStyle(translation).direction === "rtl" ? -1 : 1;
  const steps = {
    ArrowRight: words[word + forward],
    ArrowLeft: words[word - forward],
    ArrowDown: nonempty[sentence + 1]?.words[TARGET][0],
    ArrowUp: nonempty[sentence - 1]?.words[TARGET][0],
    Home: words[0],
    End: words.at(-1),
  };
  if (steps[key]) goTo(steps[key]);
}

// ---- Other translations of a sentence

function open(sentence) {
  close();
  opened = sentence;
  const texts = [...new Set(sentence.hypotheses.map((hypothesis) => hypothesis.text))];
  menu.replaceChildren(...texts.map((each) => option(each, textOf(sentence))));
  menu.hidden = false;
  menu.style.top = `${sentence.target.offsetTop + sentence.target.offsetHeight}px`;
  sentence.target.ariaExpanded = "true";
  menu.querySelector("[aria-selected=true]").focus();
  menu.scrollIntoView({ block: "nearest" });
}

function option(string, chosen) {
  const item = document.createElement("li");
  item.role = "option";
  item.tabIndex = -1;
  item.dir = "auto";
  item.ariaLabel = string.trim() || EMPTY;
  item.ariaSelected = String(string === chosen);
  const known = new Set(chosen.match(WORD));
  for (const part of string.split(/(\s+)/)) {
    const other = part.trim() && !known.has(part);
    const node = document.createElement(other ? "b" : "span"); // emphasize words that the chosen translation lacks
    node.textContent = part;
    item.append(node);
  }
  return item;
}

function close() {
  if (opened) opened.target.ariaExpanded = "false";
  opened = null;
  menu.hidden = true;
}

function choose(item) {
  const sentence = opened;
  sentence.choice = sentence.hypotheses.findIndex((hypothesis) => hypothesis.text === item.textContent);
  write(sentence);
  sentence.target.focus();
  close();
}

function browse(event) {
  const items = [...menu.children];
  const index = items.indexOf(event.target);
  const steps = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: items.length - 1 };
  if (event.key === "Enter" || event.key === " ") choose(event.target);
  else if (event.key === "Escape") opened.target.focus();
  else if (event.key in steps) items[steps[event.key]]?.focus();
  else return;
  event.preventDefault();
}

// ---- Events

mirror.append(tail);
for (const side of [text, translation]) {
  side.addEventListener("mousemove", (event) => light(wordAtPoint(event)));
  side.addEventListener("mouseleave", () => light(null));
  side.addEventListener("focusout", () => light(null));
}
text.addEventListener("keyup", (event) => {
  if (/^(Arrow|Home|End)/.test(event.key)) light(wordAtCaret());
});
translation.addEventListener("keydown", walk);
translation.addEventListener("focusin", (event) => {
  for (const sentence of sentences) sentence.target.tabIndex = sentence.target === event.target ? 0 : -1;
  [current] = positions.get(event.target).sentence.words[TARGET];
  light(current);
});
translation.addEventListener("click", (event) => {
  const word = positions.get(event.target);
  if (word && getSelection().isCollapsed) open(word.sentence); // ignore the click that ends a selection of text
});
menu.addEventListener("keydown", browse);
menu.addEventListener("click", (event) => choose(event.target.closest("li")));
menu.addEventListener("focusout", (event) => {
  if (!menu.contains(event.relatedTarget)) close();
});
