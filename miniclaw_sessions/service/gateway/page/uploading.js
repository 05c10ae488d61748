// Sending what is long: with how much of it has arrived, which `fetch` does not say.

const LONG = 262_144;

/** @typedef {(part: number) => void} Progress called with how much of it has arrived, from 0 to 1 */

/**
 * As `fetch`, for a body of which it is shown how far it has come.
 * @param {URL} url
 * @param {{method: string, headers: Headers, body: any, signal?: AbortSignal}} asked
 * @param {Progress} progress
 * @returns {Promise<Response>}
 */
export function uploaded(url, { method, headers, body, signal }, progress) {
  return new Promise((resolve, reject) => {
    const asking = new XMLHttpRequest();
    asking.open(method, url);
    headers.forEach((value, name) => asking.setRequestHeader(name, value));
    asking.responseType = "blob";
    asking.upload.onprogress = (event) => event.total > LONG && progress(event.loaded / event.total);
    asking.onload = () => resolve(new Response(asking.response, { status: asking.status }));
    asking.onerror = () => reject(new TypeError("not reached"));
    asking.onabort = () => reject(signal?.reason ?? new TypeError("not reached"));
    signal?.addEventListener("abort", () => asking.abort(), { once: true });
    asking.send(body);
  });
}
