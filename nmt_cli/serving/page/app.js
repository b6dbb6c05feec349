// The page of `nmt serve`: what is typed is sent to POST /sentences, once for a pause, and the answer is shown.

import { forget, show, translated } from "./sentences.js";

const DELAY = 250; // milliseconds after the last change before a text is sent
const RETRY = 2000; // milliseconds before a server that is gone is asked again
const ALTERNATIVES = 3; // with the best one as many as the usual beam has
const NOTHING = { sentences: [], after: "" };
const GONE = "The server cannot be reached; this page keeps trying.";

const element = (id) => document.getElementById(id);
const [from, to, swap, arrow, text, count, clear] = ["from", "to", "swap", "arrow", "text", "count", "clear"].map(element);
const [translation, message, hint, copy, status] = ["translation", "message", "hint", "copy", "status"].map(element);
const [key, keyForm] = ["key", "key-form"].map(element);

let languages = []; // what GET /languages says: [{code, name, targets}, ...]
let settings = {}; // what GET /frontend/settings says
let detected = null; // the language that the server found in the text
let request = new AbortController(); // of the text that is being translated
let timer = 0; // of what is to be done later

// ---- The server

class Failure extends Error {
  constructor(status, text, seconds) {
    super(text);
    this.status = status; // of HTTP; 0: the server cannot be reached
    this.seconds = seconds; // after which it may be asked again
  }
}

async function ask(path, options) {
  const response = await fetch(path, options).catch(() => null);
  const content = await response?.json().catch(() => null);
  if (response?.ok && content) return content;
  if (!response || response.ok || [502, 503].includes(response.status)) throw new Failure(0, GONE);
  const error = content?.error ?? `The server answered with error ${response.status}`;
  throw new Failure(response.status, error, Number(response.headers.get("Retry-After")));
}

// Learn what the server has; again and again while it cannot be reached.
async function connect() {
  stop();
  try {
    [languages, settings] = await Promise.all([ask("languages"), ask("frontend/settings")]);
  } catch {
    fail(new Failure(0, GONE));
    return;
  }
  keyForm.hidden = !settings.keyRequired;
  if (settings.keyRequired) key.value ||= sessionStorage.getItem("key") ?? "";
  offer(from.value || settings.language.source.code, to.value || settings.language.target.code);
  countCharacters();
  translate();
}

async function translate() {
  stop();
  const q = text.value.toWellFormed();
  const obstacle = obstacleTo(q);
  if (obstacle || !q.trim()) {
    say(obstacle);
    if (!obstacle) present(NOTHING);
    return;
  }
  request = new AbortController();
  const { signal } = request;
  const content = { q, source: from.value, target: to.value, alternatives: ALTERNATIVES };
  if (settings.keyRequired) content.api_key = key.value;
  const headers = { "Content-Type": "application/json" };
  translation.ariaBusy = "true";
  try {
    const answer = await ask("sentences", { method: "POST", headers, body: JSON.stringify(content), signal });
    if (signal.aborted) return; // the text has changed since
    say("");
    present(answer);
  } catch (failure) {
    if (signal.aborted) return;
    fail(failure);
  }
  translation.ariaBusy = "false";
}

function stop() {
  clearTimeout(timer);
  request.abort();
  translation.ariaBusy = "false";
}

function later(act, milliseconds) {
  clearTimeout(timer);
  timer = setTimeout(act, milliseconds);
}

// ---- What goes wrong, each in one sentence

function obstacleTo(q) {
  const [length, limit] = [lengthOf(q), settings.charLimit];
  if (length > limit) return `This text has ${number(length)} characters; the server takes ${number(limit)} at once.`;
  if (settings.keyRequired && !key.value) return "This server wants an API key.";
  return "";
}

function fail(failure) {
  if (failure.status === 0) {
    say(GONE);
    later(connect, RETRY);
  } else if (failure.status === 429) {
    say("The server is busy; this page tries again in a moment.");
    later(translate, 1000 * (failure.seconds || 1));
  } else if (failure.status === 403) {
    say("The server does not accept this API key.");
  } else {
    say(failure.message.replace(/[^.!?]$/, "$&."));
  }
}

function say(sentence) {
  if (message.textContent !== sentence) message.textContent = sentence; // what stays is not announced again
  translation.classList.toggle("old", sentence !== "");
}

// ---- Languages

const nameOf = (code) => languages.find((language) => language.code === code)?.name ?? code;
const sourceCode = () => (from.value === "auto" ? detected : from.value);

function offer(source, target) {
  const sources = languages.filter((language) => language.targets.length);
  const codes = sources.map((language) => language.code);
  fill(from, codes.length > 1 ? [...codes, "auto"] : codes, source);
  const chosen = sources.filter((language) => from.value === "auto" || from.value === language.code);
  fill(to, [...new Set(chosen.flatMap((language) => language.targets))], target);
  found(null);
}

function fill(select, codes, wanted) {
  select.replaceChildren(...codes.map((code) => new Option(nameOf(code), code)));
  select.value = codes.includes(wanted) ? wanted : codes[0];
}

function found(code) {
  detected = code;
  const auto = from.querySelector("[value=auto]");
  if (auto) auto.text = code ? `${nameOf(code)} (detected)` : "Detect language";
  text.lang = sourceCode() ?? "";
  translation.lang = to.value;
  const back = languages.some((each) => each.code === to.value && each.targets.includes(sourceCode()));
  swap.hidden = !back;
  arrow.hidden = back;
}

// ---- Around the text and its translation

const number = (value) => value.toLocaleString("en");

function lengthOf(string) {
  let length = 0;
  for (const _ of string) length += 1; // code points, as the server counts, not UTF-16's halves of them
  return length;
}

function countCharacters() {
  const length = lengthOf(text.value);
  clear.hidden = !length;
  count.textContent = `${number(length)} of ${number(settings.charLimit)} characters`;
  count.classList.toggle("over", length > settings.charLimit);
}

function present(answer) {
  show(answer);
  if (answer.detectedLanguage) found(answer.detectedLanguage.language);
  const nothing = !answer.sentences.length;
  copy.hidden = nothing;
  hint.hidden = nothing;
}

function changed() {
  stop();
  forget();
  if (languages.length) countCharacters();
  later(languages.length ? translate : connect, DELAY);
}

function setText(string) {
  text.value = string;
  changed();
}

async function copyTranslation() {
  try {
    await navigator.clipboard.writeText(translated());
  } catch {
    getSelection().selectAllChildren(translation); // without https, pages may not write to the clipboard
    document.execCommand("copy");
    getSelection().empty();
  }
  copy.textContent = "Copied";
  status.textContent = "Copied";
  setTimeout(() => (copy.textContent = "Copy"), 2000);
}

text.addEventListener("input", changed);
from.addEventListener("change", () => {
  offer(from.value, to.value);
  translate();
});
to.addEventListener("change", () => {
  found(detected);
  translate();
});
swap.addEventListener("click", () => {
  offer(to.value, sourceCode());
  setText(translated() || text.value);
});
clear.addEventListener("click", () => {
  setText("");
  text.focus();
});
copy.addEventListener("click", copyTranslation);
keyForm.addEventListener("submit", (event) => event.preventDefault());
key.addEventListener("change", () => {
  sessionStorage.setItem("key", key.value);
  translate();
});

present(NOTHING);
connect();
