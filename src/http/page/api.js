// The service's HTTP interface, as docs/http.md has it.

const TOKEN = "ragstone-token";

/** The owner's token, or an API key: `ragstone page` hands the token over behind the `#`, which no server sees. It lasts as long as the tab. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  drop: () => sessionStorage.removeItem(TOKEN),
};

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the service answered with status ${status}`);
    this.status = status;
    this.code = error?.code ?? null;
  }
}

async function request(method, path, { body, raw, signal } = {}) {
  const headers = {};
  const known = token.get();
  if (known?.startsWith("rag_")) headers.authorization = `Bearer ${known}`;
  else if (known) headers["x-ragstone-token"] = known;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: raw ?? (body === undefined ? undefined : JSON.stringify(body)), signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { message: "The service does not answer. Is it still running?" });
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  if (response.status === 401 || (response.status === 403 && answer?.error?.message?.includes("token"))) {
    // Of a service that was started again since, or a key that was revoked.
    token.drop();
  }
  throw new ApiError(response.status, answer?.error);
}

export async function get(path, signal) {
  return (await request("GET", path, { signal })).json();
}

export async function post(path, body, signal) {
  return (await request("POST", path, { body, signal })).json();
}

export async function remove(path) {
  return (await request("DELETE", path)).json();
}

/** Uploads a file as it is. */
export async function upload(path, file, signal) {
  return (await request("PUT", path, { raw: file, signal })).json();
}

/** Server-sent events of a POST, one object each, until the end or `[DONE]`. An event with an `error` is thrown. */
export async function* events(path, body, signal) {
  yield* told(await request("POST", path, { body, signal }));
}

/** What happens in the service, until the signal. */
export async function* happenings(signal) {
  yield* told(await request("GET", "/v1/events", { signal }));
}

async function* told(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    text += value ?? "";
    const whole = text.split("\n\n");
    text = whole.pop();
    for (const event of whole) {
      const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const object = JSON.parse(data);
      if (object.error?.message) throw new ApiError(response.status, object.error);
      yield object;
    }
    if (done) return;
  }
}

/** A path with its parts as names, not as paths. */
export function at(strings, ...names) {
  return strings.reduce((path, part, index) => path + encodeURIComponent(names[index - 1]) + part);
}
