// The only place where text becomes markup: fragments that the server made with the exported page's own parts, in which
// everything that anybody wrote is escaped. The page's policy lets no other code of it do this.

const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("fragments", { createHTML: (/** @type {string} */ html) => html });

/**
 * A fragment as nodes.
 * @param {string} html from the server's `articles`, `outline` or `follow`
 * @returns {DocumentFragment}
 */
export function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = /** @type {any} */ (policy ? policy.createHTML(html) : html);
  return template.content;
}

/**
 * The entry that a link within a fragment leads to; null where it leads elsewhere.
 * @param {HTMLAnchorElement} link
 */
export function entryOf(link) {
  const hash = link.getAttribute("href") ?? "";
  if (!hash.startsWith("#entry-")) return null;
  try {
    return decodeURIComponent(hash.slice("#entry-".length));
  } catch {
    return null;
  }
}
