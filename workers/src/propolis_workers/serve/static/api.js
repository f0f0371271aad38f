/** The server's API: requests with the token, errors in words, and server-sent events. */

const TOKEN = "propolis.token";
let token = kept();

/** What went wrong, in words for whoever reads the page. */
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Bear this token from now on; it goes when the tab does. */
export function useToken(text) {
  token = text;
  try {
    sessionStorage.setItem(TOKEN, text);
  } catch {
    // The browser keeps nothing: it is known until the page is left.
  }
}

/** Whether there is a token to bear. */
export function hasToken() {
  return token !== "";
}

/**
 * Ask the server; throws ApiError where it answers with an error, or not at all.
 *
 * Paths are relative to the page, so that a proxy may serve it from a folder.
 */
export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = token === "" ? {} : { Authorization: `Bearer ${token}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const url = new URL(path.replace(/^\//, ""), document.baseURI);
  const text = body === undefined ? undefined : JSON.stringify(body);
  let response;
  try {
    response = await fetch(url, { method, headers, body: text, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  const problem = new ApiError(await words(response), response.status);
  if (response.status === 401) {
    document.dispatchEvent(new CustomEvent("token-wanted", { detail: problem.message }));
  }
  throw problem;
}

/** The events of a response, each with its name and its data as text, until it ends. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let name = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await read(reader);
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/); // a last \r may be half an end
      rest = lines.pop();
      for (const line of lines) {
        const [, field, content] = /^([^:]*):? ?(.*)$/.exec(line);
        if (field === "event") name = content;
        else if (field === "data") data.push(content);
        else if (line === "" && data.length > 0) yield { name, data: data.join("\n") };
        if (line === "") {
          name = "";
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever leaves early wants no more
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection to the server was lost.");
  }
}

/** What an error response says. */
async function words(response) {
  let said = "";
  try {
    said = (await response.json()).error.message;
  } catch {
    // Not of our server's making, as a proxy's.
  }
  if (typeof said !== "string" || said === "") {
    said = `The server answered ${response.status} ${response.statusText}`.trim();
  }
  const seconds = Number(response.headers.get("Retry-After"));
  const busy = response.status === 429 ? "The server is busy: " : "";
  const again = seconds > 0 ? ` (worth another try in ${seconds} s)` : "";
  return `${busy}${said}${again}`;
}

function kept() {
  try {
    return sessionStorage.getItem(TOKEN) ?? "";
  } catch {
    return "";
  }
}
