// The page of `nmt serve`. After each pause in typing, it sends the text to POST /sentences, a long text part by part.

import { acceptFiles } from "./files.js";
import { partsOf } from "./parts.js";
import { forget, show, translated } from "./sentences.js";
import { Failure, ask } from "./server.js";

const DELAY = 250; // milliseconds from the last change to the request
const RETRY = 2000; // milliseconds between attempts to reach the server
const ALTERNATIVES = 3; // one fewer than the default beam size
const NOTHING = { sentences: [], after: "" };
const BYTES = 4; // maximum per character in UTF-8
const TEXTS = /\.(txt|html?|md|markdown|pot?)$/i;

const element = (id) => document.getElementById(id);
const [from, to, swap, text, count, clear] = ["from", "to", "swap", "text", "count", "clear"].map(element);
const [translation, message, hint, copy, status] = ["translation", "message", "hint", "copy", "status"].map(element);
const [work, progress, done, cancel] = ["work", "progress", "done", "cancel"].map(element);
const [key, keyForm, choose, chooser] = ["key", "key-form", "choose", "chooser"].map(element);

let languages = []; // from GET /languages: [{code, name, targets}, ...]
let settings = {}; // from GET /frontend/settings
let detected = null; // the language that the server detected
let request = new AbortController(); // for the text being translated
let timer = 0; // of the next delayed action
let parts = []; // of the text
let answers = new Map(); // the server's answers for the chosen languages, by part

// ---- The server

// Load the server's languages and settings. Retry while the server cannot be reached.
async function connect() {
  stop();
  try {
    [languages, settings] = await Promise.all([ask("languages"), ask("frontend/settings")]);
  } catch {
    fail(new Failure(0));
    return;
  }
  choose.disabled = false;
  chooser.accept = settings.supportedFilesFormat.join();
  text.placeholder = "Type or paste text, or drop a file: a document, a book, subtitles, a web page";
  keyForm.hidden = !settings.keyRequired;
  key.value ||= sessionStorage.getItem("key") ?? "";
  offer(from.value || settings.language.source.code, to.value || settings.language.target.code);
  countCharacters();
  translate();
}

async function translate() {
  stop();
  const q = text.value.toWellFormed();
  request = new AbortController();
  const { signal } = request;
  try {
    check(q);
    translation.ariaBusy = "true";
    await translateParts(q, signal);
    showMessage("");
  } catch (failure) {
    if (signal.aborted) return; // `stop` has ended this translation
    fail(failure);
  }
  if (document.activeElement === cancel) copy.focus(); // `cancel` is about to be hidden
  becomeIdle();
}

// Show the translation of a text. Request the parts without an answer one after the other.
async function translateParts(q, signal) {
  parts = q.trim() ? partsOf(q, parts) : [];
  const shown = { ...NOTHING, sentences: [], rest: q };
  let source = from.value;
  for (const [index, part] of parts.entries()) {
    if (!answers.has(part)) {
      if (parts.filter((each) => !answers.has(each)).length > 1) work.hidden = false;
      if (!work.hidden) showProgress(shown, q.length);
    }
    const answer = answers.get(part) ?? (await askFor({ ...fields(), source, q: part }, signal));
    if (index === 0) source = useDetected(answer);
    answers.set(part, answer);
    append(shown, part, answer);
  }
  present(shown);
  answers = new Map(parts.map((part) => [part, answers.get(part)]));
}

function askFor(content, signal) {
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify({ ...content, alternatives: ALTERNATIVES });
  return ask("sentences", { method: "POST", headers, body, signal });
}

const fields = () => ({ source: from.value, target: to.value, ...(!keyForm.hidden && { api_key: key.value }) });

// Use the language detected in the first part. Return the source language to send with the other parts.
function useDetected(answer) {
  const code = answer.detectedLanguage?.language ?? null;
  if (code !== detected) {
    answers.clear();
    setDetected(code);
  }
  return reaches(code, to.value) ? code : from.value;
}

function append(shown, part, { sentences: [first, ...others], after }) {
  if (first) shown.sentences.push({ ...first, before: shown.after + first.before }, ...others);
  shown.after = first ? after : shown.after + after;
  shown.rest = shown.rest.slice(part.length);
}

function showProgress(shown, length) {
  showMessage("");
  present(shown);
  progress.value = 1 - shown.rest.length / length;
  done.textContent = progress.value.toLocaleString("en", { style: "percent" });
  cancel.textContent = "Cancel";
}

function pause() {
  stop();
  work.hidden = false;
  done.textContent = status.textContent = `Stopped at ${done.textContent}`;
  cancel.textContent = "Continue";
}

function stop() {
  clearTimeout(timer);
  request.abort();
  becomeIdle();
}

function becomeIdle() {
  translation.ariaBusy = "false";
  work.hidden = true;
}

function schedule(action, milliseconds) {
  clearTimeout(timer);
  timer = setTimeout(action, milliseconds);
}

// ---- Errors

// Throw a Failure if a text or file cannot be sent.
function check(q, length = lengthOf(q)) {
  const limit = settings.charLimit;
  if (length > limit) {
    const sentence = `This text has ${number(length)} characters. The server accepts at most ${number(limit)} at once.`;
    throw new Failure(400, sentence);
  }
  if (!keyForm.hidden && !key.value) throw new Failure(401);
}

async function prepare(file) {
  const kinds = settings.supportedFilesFormat;
  if (!kinds) throw new Failure(0);
  if (!kinds.some((kind) => file.name.toLowerCase().endsWith(kind))) {
    throw new Failure(400, `The server accepts files of these kinds: ${kinds.join(" ")}.`);
  }
  const isText = TEXTS.test(file.name); // the server counts the characters of other files
  if (isText && file.size > BYTES * settings.charLimit) check("", Math.ceil(file.size / BYTES));
  const q = await file.text().catch(() => { throw new Failure(400, "This file cannot be read."); });
  check(isText ? q : "");
  return fields();
}

function fail(failure) {
  const known = message.textContent === failure.sentence;
  showMessage(failure.sentence);
  if (failure.status === 0) schedule(connect, RETRY);
  else if (failure.status === 429) schedule(translate, 1000 * failure.seconds);
  else if (!known) askForKey(failure); // if the message is already shown, let the user keep typing
}

function askForKey(failure) {
  if (!failure.key) return;
  keyForm.hidden = false;
  key.focus();
  key.select();
}

function showMessage(sentence) {
  if (message.textContent !== sentence) message.textContent = sentence; // screen readers announce each assignment
  translation.classList.toggle("old", sentence !== "");
}

// ---- Languages

const nameOf = (code) => languages.find((language) => language.code === code)?.name ?? code;
const sourceCode = () => (from.value === "auto" ? detected : from.value);
const reaches = (source, target) => languages.some((each) => each.code === source && each.targets.includes(target));

function offer(source, target) {
  answers.clear();
  const sources = languages.filter((language) => language.targets.length);
  const codes = sources.map((language) => language.code);
  fill(from, codes.length > 1 ? [...codes, "auto"] : codes, source);
  const chosen = sources.filter((language) => from.value === "auto" || from.value === language.code);
  fill(to, [...new Set(chosen.flatMap((language) => language.targets))], target);
  setDetected(null);
}

function fill(select, codes, wanted) {
  select.replaceChildren(...codes.map((code) => new Option(nameOf(code), code)));
  select.value = codes.includes(wanted) ? wanted : codes[0];
}

function setDetected(code) {
  detected = code;
  const auto = from.querySelector("[value=auto]");
  if (auto) auto.text = code ? `${nameOf(code)} (detected)` : "Detect language";
  text.lang = sourceCode() ?? "";
  translation.lang = to.value;
  swap.disabled = !reaches(to.value, sourceCode());
  swap.title = swap.disabled ? "No model translates back" : "Swap languages";
}

// ---- The text and its translation

const number = (value) => value.toLocaleString("en");

function lengthOf(string) {
  let length = 0;
  for (const _ of string) length += 1; // code points, which the server counts
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
  const nothing = !answer.sentences.length;
  copy.hidden = nothing;
  hint.hidden = nothing;
}

function textChanged() {
  stop();
  forget();
  if (languages.length) countCharacters();
  schedule(languages.length ? translate : connect, DELAY);
}

function setText(string) {
  text.value = string;
  textChanged();
}

async function copyTranslation() {
  try {
    await navigator.clipboard.writeText(translated());
  } catch {
    getSelection().selectAllChildren(translation); // the clipboard API needs https
    document.execCommand("copy");
    getSelection().empty();
  }
  copy.textContent = "Copied";
  status.textContent = "Copied";
  setTimeout(() => (copy.textContent = "Copy"), 2000);
}

function useKey() {
  sessionStorage.setItem("key", key.value);
  showMessage("");
  translate();
}

text.addEventListener("input", textChanged);
from.addEventListener("change", () => {
  offer(from.value, to.value);
  translate();
});
to.addEventListener("change", () => {
  answers.clear();
  setDetected(detected);
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
cancel.addEventListener("click", () => (translation.ariaBusy === "true" ? pause() : translate()));
keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  text.focus();
  if (message.textContent) useKey(); // the same key again, which fires no "change" event
});
key.addEventListener("change", useKey);

acceptFiles(prepare, askForKey);
present(NOTHING);
connect();
