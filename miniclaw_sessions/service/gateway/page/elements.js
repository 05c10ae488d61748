// Elements made of plain data: every text becomes a text node, so nothing that anybody wrote is markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element with attributes, listeners and children.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name its tag
 * @param {Record<string, any>} [attributes] a function listens to the event of that name, `true` is an empty attribute,
 *   `false`, null and undefined are left out
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, String(value));
  }
  element.append(...children.filter((one) => one !== null && one !== undefined && one !== false).map(asNode));
  return element;
}

/** @param {Node | string | number} one */
function asNode(one) {
  return one instanceof Node ? one : String(one);
}

/**
 * One of the pictures in the page's head.
 * @param {string} name
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/**
 * A button that is a picture, with a name for those who do not see it.
 * @param {string} picture
 * @param {string} label
 * @param {(event: MouseEvent) => void} act
 */
export function iconButton(picture, label, act) {
  return make("button", { type: "button", class: "icon", title: label, "aria-label": label, click: act }, icon(picture));
}

/**
 * The element with this id, which the page's own markup has.
 * @param {string} id
 * @returns {any}
 */
export function find(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element ${id}`);
  return found;
}
