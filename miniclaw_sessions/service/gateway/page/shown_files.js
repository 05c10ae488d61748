// The files within messages: a picture is fetched when its article is shown, all else when it is asked for.

import { request, sessionPath } from "./api.js";
import { make } from "./elements.js";
import { attempt } from "./notices.js";

/** The pictures that were fetched, by where they are: an article is drawn more than once. @type {Map<string, Promise<Blob>>} */
const pictures = new Map();
const MOST = 60;

/**
 * @param {string} session
 * @param {HTMLElement} node an article
 */
export function showFiles(session, node) {
  for (const picture of /** @type {NodeListOf<HTMLImageElement>} */ (node.querySelectorAll("img[data-file]"))) {
    attempt(async () => show(picture, await pictureAt(sessionPath(session, `entries/${picture.dataset.file}`))));
  }
  for (const button of /** @type {NodeListOf<HTMLElement>} */ (node.querySelectorAll("[data-file]:not(img)"))) {
    button.title = "Save this file";
    button.addEventListener("click", () => attempt(() => save(session, button)));
  }
  for (const button of /** @type {NodeListOf<HTMLElement>} */ (node.querySelectorAll("[data-listen]"))) {
    button.addEventListener("click", () => attempt(() => listen(session, button)));
  }
}

/** @param {string} path */
function pictureAt(path) {
  const found = pictures.get(path) ?? fetched(path);
  pictures.delete(path);
  pictures.set(path, found);
  found.catch(() => pictures.delete(path));
  if (pictures.size > MOST) pictures.delete(pictures.keys().next().value ?? "");
  return found;
}

/** @param {string} path */
async function fetched(path) {
  return (await request("GET", path)).blob();
}

/**
 * @param {HTMLImageElement} picture
 * @param {Blob} blob
 */
function show(picture, blob) {
  const address = URL.createObjectURL(blob);
  picture.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
  picture.src = address;
}

/**
 * @param {string} session
 * @param {HTMLElement} button
 */
async function save(session, button) {
  const address = URL.createObjectURL(await fetched(sessionPath(session, `entries/${button.dataset.file}`)));
  make("a", { href: address, download: button.textContent }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser reads it after the click
}

/**
 * @param {string} session
 * @param {HTMLElement} button
 */
async function listen(session, button) {
  const blob = await fetched(sessionPath(session, `entries/${button.dataset.listen}`));
  const player = make("audio", { controls: true, src: URL.createObjectURL(blob), "aria-label": button.parentElement?.querySelector("[data-file]")?.textContent });
  button.parentElement?.after(player);
  button.remove();
  player.focus();
  player.play().catch(() => {});
}
