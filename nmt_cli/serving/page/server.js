// Sends requests to the server and turns its errors into sentences.

const MISSING_KEY = "An API key is needed"; // the server's message, with status 400

export class Failure extends Error {
  // `status` is an HTTP status, or 0 if the server cannot be reached. `seconds` is the delay before a retry.
  constructor(status, text = "", seconds = 1) {
    super(text);
    this.status = status;
    this.seconds = seconds;
    this.key = [401, 403].includes(status) || text.startsWith(MISSING_KEY); // whether the server needs a key, or another key
  }

  get sentence() {
    if (this.status === 0) return "The server cannot be reached; this page keeps trying.";
    if (this.status === 429) return "The server is busy; this page tries again in a moment.";
    if (this.status === 403) return "The server does not accept this API key.";
    if (this.key) return "This server needs an API key.";
    return this.message.replace(/[^.!?]$/, "$&.");
  }
}

// Send a request, and return its answer as `kind`: "json" or "blob".
export async function ask(path, options, kind = "json") {
  const response = await fetch(path, options).catch(() => null);
  const content = await response?.[response.ok ? kind : "json"]().catch(() => null);
  if (response?.ok && content) return content;
  if (!response || response.ok || [502, 503].includes(response.status)) throw new Failure(0);
  const error = content?.error ?? `The server answered with error ${response.status}`;
  throw new Failure(response.status, error, Number(response.headers.get("Retry-After")) || 1);
}
