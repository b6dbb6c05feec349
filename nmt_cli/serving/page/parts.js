// Divides a long text into parts. Each is one request, so the translation appears part by part.

const SIZE = 2000; // UTF-16 units at least, except for the last part
// The server ends a sentence at each match, so parts give the same translation as the whole text.
const SENTENCE = /[^]*?(?:\n|[\p{L}\p{N}]{2}[.!?…] |[。！？](?=[\p{L}\p{N}])|$)/gu;

// Return the parts of a text. `before` are its parts before the last edit; those behind the edit stay.
export function partsOf(text, before) {
  const kept = [];
  let end = text.length;
  for (const part of before.toReversed()) {
    if (!text.endsWith(part, end)) break;
    kept.unshift(part);
    end -= part.length;
  }
  end += kept.shift()?.length ?? 0; // it may touch the edit
  const parts = [""];
  for (const [sentence] of text.slice(0, end).matchAll(SENTENCE)) {
    if (parts.at(-1).length >= SIZE) parts.push("");
    parts[parts.length - 1] += sentence;
  }
  return [...parts, ...kept].filter(Boolean);
}
