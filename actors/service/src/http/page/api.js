// The service's HTTP interface, as docs/http.md has it.

const TOKEN = "ragstone-token";

/** Where documents go, and are looked for, as long as nobody named a collection. */
export const DEFAULT_COLLECTION = "default";

/** The owner's token, or an API key: `ragstone page` hands the token over after the `#`, which no server sees. It lasts as long as the tab. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  drop: () => sessionStorage.removeItem(TOKEN),
};

/** What the service says of a collection that is not there is advice for the command line. */
const NO_COLLECTION = "There is no such collection, or no longer: the view Collections has those that are there.";

export class ApiError extends Error {
  constructor(status, error) {
    const isNoCollection = error?.code === "not_found" && error.param === "collection";
    super(isNoCollection ? NO_COLLECTION : error?.message ?? `the service answered with status ${status}`);
    this.status = status;
    this.code = error?.code ?? null;
    this.isNoCollection = isNoCollection;
  }
}

/** What `listen` hears of the service. A connection that fails is an error of ours, with status 0; one that the signal ended is the signal's. */
async function heard(signal, failed, listen) {
  try {
    return await listen();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { message: failed });
  }
}

async function whole(method, path, options = {}) {
  const response = await request(method, path, options);
  return heard(options.signal, "The service broke off its answer. Is it still running?", () => response.json());
}

async function request(method, path, { body, raw, signal } = {}) {
  const headers = {};
  const known = token.get();
  if (known?.startsWith("rag_")) headers.authorization = `Bearer ${known}`;
  else if (known) headers["x-ragstone-token"] = known;
  if (body !== undefined) headers["content-type"] = "application/json";
  const sent = raw ?? (body === undefined ? undefined : JSON.stringify(body));
  // Below the page's own address, which may be a proxy's folder.
  const response = await heard(signal, "The service does not answer. Is it still running?", () => fetch(path.replace(/^\//, ""), { method, headers, body: sent, signal }));
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  const isKey = known?.startsWith("rag_");
  const isRefused = response.status === 401 || (response.status === 403 && !isKey && answer?.error?.message?.includes("token"));
  // Of a service that was started again since, or a key that was revoked; but not what was entered since this was asked.
  if (isRefused && token.get() === known) token.drop();
  throw new ApiError(response.status, answer?.error);
}

export function get(path, signal) {
  return whole("GET", path, { signal });
}

// What changes something takes no signal: whoever leaves a view does not take back what was begun there.

export function post(path, body) {
  return whole("POST", path, { body });
}

export function remove(path) {
  return whole("DELETE", path);
}

/** Uploads a file as it is. */
export function upload(path, file) {
  return whole("PUT", path, { raw: file });
}

/** Server-sent events of a POST, one object each, until the end, `[DONE]` or the signal. An event with an `error` is thrown. */
export function events(path, body, signal) {
  return told("POST", path, { body, signal });
}

/** What happens in the service, until the signal. */
export function happenings(signal) {
  return told("GET", "/v1/events", { signal });
}

async function* told(method, path, options) {
  const { signal } = options;
  let reader;
  try {
    const response = await request(method, path, options);
    reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await heard(signal, "The service broke off its answer. Is it still running?", () => reader.read());
      text += value ?? "";
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
        if (data === "[DONE]") return;
        if (!data) continue;
        const object = JSON.parse(data);
        const fault = object.type === "error" ? object : object.error;
        if (fault?.message) throw new ApiError(response.status, fault);
        yield object;
      }
      if (done) return;
    }
  } catch (error) {
    if (!signal?.aborted) throw error;
  } finally {
    // Whoever stops listening gives the connection back: a browser has six for all views.
    reader?.cancel().catch(() => {});
  }
}

/** A path with its parts as names, not as paths. */
export function at(strings, ...names) {
  return strings.reduce((path, part, index) => path + encodeURIComponent(names[index - 1]) + part);
}
