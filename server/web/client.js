// The server asked: one race as a stream of events, and everything that can go wrong as a Failure with words for people.

export class Failure extends Error {
  constructor(kind, message, more = {}) {
    super(message);
    this.kind = kind; // "key", "none_passed", "busy", "unavailable", "cancelled", "deadline", "input", "network", "server"
    Object.assign(this, more);
  }
}

const KINDS = { 400: "input", 401: "key", 404: "input", 413: "input", 422: "none_passed", 429: "busy", 499: "cancelled",
  503: "unavailable", 504: "deadline" };
const CODES = { invalid_api_key: "key", no_candidate_passed: "none_passed", rate_limit_exceeded: "busy",
  service_unavailable: "unavailable", deadline_exceeded: "deadline", cancelled: "cancelled" };
const NETWORK = "The connection to the server was lost. It may have stopped, or the network between here and there; "
  + "what had come by then is shown.";

function headers(key, more = {}) {
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

function failureOf(error, status, retryAfter) {
  const kind = CODES[error.code] ?? CODES[error.type] ?? KINDS[status] ?? (status >= 400 && status < 500 ? "input" : "server");
  return new Failure(kind, String(error.message ?? ""), { retryAfter });
}

async function failureOfResponse(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    error = { message: `The server answered with status ${response.status}.` };
  }
  return failureOf(error, response.status, Number(response.headers.get("Retry-After")) || 0);
}

// Not crypto.randomUUID(), which plain HTTP from another machine hasn't.
function newId() {
  return "page-" + Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// {ready, model, chat, sandbox} or null where nobody answers.
export async function askReady() {
  try {
    return await (await fetch("ready", { cache: "no-store" })).json();
  } catch {
    return null;
  }
}

// Whether the server wants a key that isn't this one.
export async function wantsKey(key) {
  try {
    return (await fetch("v1/models", { headers: headers(key), cache: "no-store" })).status === 401;
  } catch {
    return false;
  }
}

// The data of each event of a stream, as text.
async function* eventsOf(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) yield event.slice(6);
    }
  }
}

export class Race {
  constructor(key) {
    this.key = key;
    this.id = newId();
    this.abort = new AbortController();
    this.cancelled = false;
  }

  // Asks; calls tell(firstpass) for each event that has news, and returns when the race has ended.  Throws a Failure.
  async run(path, body, tell) {
    let response, ended = false;
    try {
      response = await fetch(path, {
        method: "POST",
        headers: headers(this.key, { "Content-Type": "application/json", "x-request-id": this.id }),
        body: JSON.stringify(body),
        signal: this.abort.signal,
      });
      if (!response.ok) throw await failureOfResponse(response);
      for await (const data of eventsOf(response)) {
        if (data === "[DONE]") {
          ended = true;
          break;
        }
        const event = JSON.parse(data);
        const firstpass = event.firstpass ?? event.choices?.[0]?.firstpass;
        if (firstpass) tell(firstpass);
        if (event.error) throw failureOf(event.error, 0, 0);
      }
    } catch (error) {
      if (error instanceof Failure) throw error;
      throw this.cancelled ? new Failure("cancelled", "") : new Failure("network", NETWORK);
    }
    if (!ended) throw this.cancelled ? new Failure("cancelled", "") : new Failure("network", NETWORK);
  }

  // The server notices by itself.
  leave() {
    this.cancelled = true;
    this.abort.abort();
  }

  // The server is told, so that it stops at once; the stream ends by that.  Where that fails, leaving has the same effect.
  async cancel() {
    this.cancelled = true;
    try {
      const response = await fetch(`v1/races/${this.id}`, { method: "DELETE", headers: headers(this.key) });
      if (!response.ok) this.abort.abort();
    } catch {
      this.abort.abort();
    }
  }
}
