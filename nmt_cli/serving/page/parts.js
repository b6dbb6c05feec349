// Divides a long text into parts. Each part is sent in its own request, so the translation appears part by part.

const SIZE = 2000; // minimum length of a part in UTF-16 code units; the last new part may be shorter
// A match is a sentence such as "It rains. ". The server also ends one there, so parts translate like the whole text.
const SENTENCE = /[^]*?(?:\n|[\p{L}\p{N}]{2}[.!?…] |[。！？](?=[\p{L}\p{N}])|$)/gu;

// Return the parts of a text. `before` lists its parts before the last edit. Parts after the edit stay the same.
export function partsOf(text, before) {
  const kept = [];
  let end = text.length;
  for (const part of before.toReversed()) {
    if (!text.endsWith(part, end)) break;
    kept.unshift(part);
    end -= part.length;
  }
  end += kept.shift()?.length ?? 0; // the edit may touch the first kept part
  const parts = [""];
  for (const [sentence] of text.slice(0, end).matchAll(SENTENCE)) {
    if (parts.at(-1).length >= SIZE) parts.push("");
    parts[parts.length - 1] += sentence;
  }
  return [...parts, ...kept].filter(Boolean);
}
