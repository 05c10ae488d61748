
"use strict";
// Chooses which branch is in the conversation, searches, and listens to keys. All text is in the page already: the
// script moves articles and makes plain text nodes, never markup.
(() => {
  const find = (id) => document.getElementById(id);
  const conversation = find("conversation");
  const tree = find("branches");
  const hits = find("hits");
  const search = find("search");
  const aside = find("aside");
  const MOST_HITS = 200;

  // --- the tree as the articles tell it: whom each follows, and who goes on in the same column ---

  const articles = [];
  for (const article of document.querySelectorAll("article[data-n]")) articles[+article.dataset.n] = article;
  const parents = articles.map((article) => ("up" in article.dataset ? +article.dataset.up : -1));
  const next = articles.map(() => -1);
  articles.forEach((article, n) => {
    if (!article.classList.contains("first")) next[parents[n]] = n;
  });
  const numbers = new Map(); // of each anchor; tool results share their call's article
  articles.forEach((article, n) => {
    for (const named of article.querySelectorAll("[id]")) numbers.set(named.id, n);
    numbers.set(article.id, n);
  });
  const leaf = articles.findIndex((article) => article.classList.contains("leaf"));
  const links = [];
  for (const link of tree.querySelectorAll("li > a")) {
    const n = numbers.get(link.hash.slice(1));
    if (n !== undefined) links[n] = link;
  }

  function branchThrough(n) {
    const path = [];
    for (let at = n; at !== -1; at = parents[at]) path.push(at);
    path.reverse();
    for (let at = next[n]; at !== -1; at = next[at]) path.push(at);
    return path;
  }

  // --- showing a branch ---

  let shown = leaf === -1 ? [] : branchThrough(leaf);
  let chosen = -1;
  const where = new Map(shown.map((n, at) => [n, at])); // the place of each article that is shown

  function show(path) {
    let same = 0;
    while (same < path.length && path[same] === shown[same]) same++;
    for (const n of shown.slice(same)) {
      articles[n].remove();
      where.delete(n);
      links[n]?.parentElement.classList.remove("on");
    }
    if (!shown.length) conversation.replaceChildren();
    const added = document.createDocumentFragment();
    path.slice(same).forEach((n, at) => {
      added.append(articles[n]);
      where.set(n, same + at);
      links[n]?.parentElement.classList.add("on");
    });
    conversation.append(added);
    shown = path;
    aside.hidden = leaf === -1 || where.has(leaf) && path.at(-1) === leaf;
    for (const way of conversation.querySelectorAll("a[data-way]")) markWay(way);
  }

  function markWay(way) {
    way.classList.toggle("taken", where.has(+way.dataset.way));
  }

  function choose(n) {
    if (!where.has(n)) show(branchThrough(n));
    articles[chosen]?.classList.remove("chosen");
    links[chosen]?.classList.remove("chosen");
    chosen = n;
    articles[n].classList.add("chosen");
    const link = links[n];
    if (!link) return;
    link.classList.add("chosen");
    unfold(link);
    link.scrollIntoView({ block: "nearest" });
  }

  function unfold(element) {
    for (let fold = element.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  }

  function goTo(id) {
    const n = numbers.get(id) ?? numbers.get("entry-" + id);
    if (n === undefined) return false;
    choose(n);
    const target = find(id) ?? articles[n];
    unfold(target);
    scrollTo(target, 8);
    find("tree").querySelector(".close").hash = "#" + articles[n].id;
    return true;
  }

  // What was never drawn has only an estimated height, so the page is scrolled again as it is drawn, for some frames.
  function scrollTo(target, frames) {
    target.scrollIntoView({ block: target.offsetHeight > innerHeight / 2 ? "start" : "center" });
    if (frames) requestAnimationFrame(() => scrollTo(target, frames - 1));
  }

  addEventListener("hashchange", () => goTo(location.hash.slice(1)));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#entry-']");
    if (link && link.hash === location.hash) goTo(link.hash.slice(1)); // the address stays, so no event follows
  });

  // --- searching ---

  let texts = null; // of all articles, made when somebody searches
  let waiting = 0;

  function textOf(article) {
    return article.textContent.replace(/\s+/g, " ");
  }

  function searchFor(query) {
    hits.hidden = !query;
    tree.hidden = Boolean(query);
    CSS.highlights?.delete("found");
    if (!query) return;
    texts ??= articles.map((article) => textOf(article).toLowerCase());
    const found = [];
    texts.forEach((text, n) => {
      if (text.includes(query)) found.push(n);
    });
    const told = document.createElement("p");
    told.textContent = found.length > MOST_HITS ? `${found.length} found, the first ${MOST_HITS}:` : `${found.length} found`;
    hits.replaceChildren(told, ...found.slice(0, MOST_HITS).map((n) => hitLink(n, query)));
    highlight(query);
  }

  function hitLink(n, query) {
    const text = textOf(articles[n]);
    const at = Math.max(0, text.toLowerCase().indexOf(query));
    const link = document.createElement("a");
    const who = document.createElement("b");
    const mark = document.createElement("mark");
    who.textContent = articles[n].querySelector("header > a").textContent;
    mark.textContent = text.slice(at, at + query.length);
    const before = (at > 40 ? "…" : "") + text.slice(Math.max(0, at - 40), at);
    link.href = "#" + articles[n].id;
    link.append(who, " ", before, mark, text.slice(at + query.length, at + query.length + 80));
    return link;
  }

  function highlight(query) {
    if (!CSS.highlights) return;
    const ranges = [];
    const walker = document.createTreeWalker(conversation, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && ranges.length < 2000; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      for (let at = text.indexOf(query); at !== -1; at = text.indexOf(query, at + query.length)) {
        ranges.push(new StaticRange({ startContainer: node, startOffset: at, endContainer: node, endOffset: at + query.length }));
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  }

  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => searchFor(search.value.trim().toLowerCase().replace(/\s+/g, " ")), 120);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") hits.querySelector("a")?.click();
    if (event.key === "Escape") {
      search.value = "";
      searchFor("");
      search.blur();
    }
  });

  // --- keys ---

  function firstInView() {
    return shown.findIndex((n) => articles[n].getBoundingClientRect().bottom > 0);
  }

  function step(by) {
    const at = chosen !== -1 && where.has(chosen) ? where.get(chosen) + by : firstInView();
    const n = shown[Math.min(Math.max(at, 0), shown.length - 1)];
    if (n === undefined) return;
    history.replaceState(null, "", "#" + articles[n].id);
    goTo(articles[n].id);
  }

  function toggleFolds() {
    const folds = [...(articles[chosen]?.querySelectorAll("details") ?? [])];
    const open = folds.some((fold) => !fold.open);
    for (const fold of folds) fold.open = open;
  }

  const keys = {
    j: () => step(1),
    k: () => step(-1),
    o: toggleFolds,
    "/": () => {
      if (!find("tree").offsetHeight) location.hash = "#tree";
      search.focus();
      search.select();
    },
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target === search) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  // --- code ---

  for (const block of document.querySelectorAll("div.code")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.setAttribute("aria-label", "Copy the code");
    block.append(button);
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.copy");
    if (!button) return;
    const code = button.parentElement.querySelector("pre");
    let done = "copied";
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      done = "marked";
    }
    button.classList.add(done);
    button.setAttribute("aria-label", done === "copied" ? "Copied" : "Marked: copy it with Ctrl C");
    setTimeout(() => {
      button.classList.remove(done);
      button.setAttribute("aria-label", "Copy the code");
    }, 2000);
  });

  // --- the beginning ---

  find("elsewhere")?.remove();
  search.hidden = false;
  document.querySelector(".keys").hidden = false;
  for (const way of document.querySelectorAll("a[data-way]")) markWay(way);
  if (!goTo(location.hash.slice(1)) && !location.hash && leaf !== -1) {
    const link = links[leaf];
    if (link) {
      unfold(link);
      link.scrollIntoView({ block: "nearest" });
    }
  }
})();
