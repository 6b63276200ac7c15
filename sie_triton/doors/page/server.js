// Ask the server, with the token of this tab.

const KEY = "sie-token";
const TIMEOUT_MS = 10_000;

export class Unauthorized extends Error {}
export class Unreachable extends Error {}
export class Refused extends Error {}

export const token = () => sessionStorage.getItem(KEY) ?? "";
export const setToken = (value) => sessionStorage.setItem(KEY, value);
export const forgetToken = () => sessionStorage.removeItem(KEY);

// Return the decoded response; a `body` makes it a POST. The errors are those above, with a message in words.
export async function ask(path, body, timeoutMs = TIMEOUT_MS) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(timeoutMs) };
  if (body !== undefined) {
    options.method = "POST";
    options.body = body;
    headers["Content-Type"] = "application/json";
  }
  let response, text;
  try {
    response = await fetch(path, options);
    text = await response.text();
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? "The server does not answer" : "The server is unreachable");
  }
  if (response.status === 401) throw new Unauthorized("The server asks for a token");
  if (!response.ok) throw new Refused(reason(response, text));
  return decoded(text);
}

function reason(response, text) {
  const wait = response.headers.get("Retry-After");
  const message = decoded(text)?.detail?.message ?? "The server gave no reason";
  return `${message} (${response.status}${wait ? `; retry after ${wait} s` : ""})`;
}

function decoded(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
