// Sends files to POST /translate_file and saves their translations.

import { ask } from "./server.js";

const element = (id) => document.getElementById(id);
const [files, file, choose, chooser, status] = ["files", "file", "choose", "chooser", "status"].map(element);

// Translate the files that the user drops or chooses. `prepare(file)` resolves to the fields to send with a file, or
// throws a Failure. `onFailure` is called with every Failure.
export function acceptFiles(prepare, onFailure) {
  const add = (added) => [...added].forEach((each) => addRow(each, prepare, onFailure));
  const drag = (event, inside) => {
    if (!event.dataTransfer.types.includes("Files")) return; // the text field itself accepts dropped text
    event.preventDefault();
    document.body.classList.toggle("dropping", inside);
  };
  for (const each of ["dragenter", "dragover"]) addEventListener(each, (event) => drag(event, true));
  addEventListener("dragleave", (event) => drag(event, event.relatedTarget !== null));
  addEventListener("drop", (event) => {
    drag(event, false);
    add(event.dataTransfer.files);
  });
  choose.addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => {
    add(chooser.files);
    chooser.value = ""; // allow the same file to be chosen again
  });
}

function addRow(sent, prepare, onFailure) {
  const row = file.content.firstElementChild.cloneNode(true);
  const [name, state, wait, save, again, end] = row.children;
  let request = null; // the running request

  function show(sentence) {
    state.textContent = sentence;
    status.textContent = `${sent.name}: ${sentence}`;
    wait.hidden = !request;
    end.textContent = request ? "Cancel" : "Remove";
    end.ariaLabel = `${end.textContent} ${sent.name}`;
  }

  async function run() {
    request = new AbortController();
    const { signal } = request;
    again.hidden = true;
    show("is being translated");
    try {
      const fields = await prepare(sent);
      const content = await translate(sent, fields, signal, show);
      request = null;
      save.download = save.textContent = nameOf(sent.name, fields.target);
      save.href = URL.createObjectURL(content);
      save.hidden = false;
      save.click();
      show("was translated:");
    } catch (failure) {
      request = null;
      again.hidden = failure.status === 400 && !failure.key; // the server would refuse it again
      show(signal.aborted ? "Cancelled." : failure.sentence);
      if (!signal.aborted) onFailure(failure);
    }
  }

  name.textContent = sent.name;
  again.addEventListener("click", () => {
    end.focus();
    run();
  });
  end.addEventListener("click", () => {
    if (request) return request.abort();
    URL.revokeObjectURL(save.href);
    row.remove();
    choose.focus();
  });
  files.append(row);
  run();
}

async function translate(sent, fields, signal, show) {
  const body = new FormData();
  for (const [name, value] of Object.entries({ ...fields, file: sent })) body.set(name, value);
  const send = () => ask("translate_file", { method: "POST", body, signal });
  const { translatedFileUrl } = await withRetries(send, signal, show);
  return ask(`download_file/${translatedFileUrl.split("/").at(-1)}`, { signal }, "blob"); // a proxy may change the rest of the URL
}

// Send a request, and repeat it while the server is unreachable or busy.
async function withRetries(send, signal, show) {
  for (;;) {
    try {
      return await send();
    } catch (failure) {
      if (signal.aborted || ![0, 429].includes(failure.status)) throw failure;
      show(failure.sentence);
      await new Promise((resolve) => {
        setTimeout(resolve, 1000 * failure.seconds);
        signal.addEventListener("abort", resolve);
      });
    }
  }
}

// Return the name of a translated file, such as page.de.html for page.html in German.
const nameOf = (name, code) => name.replace(/(\.[^.]*)?$/, (suffix) => `.${code}${suffix}`);
