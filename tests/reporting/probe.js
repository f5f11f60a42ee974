// Runs in a page, and leaves what it found in the page around it. Contrast is that of WCAG 2.2.

addEventListener("load", () => {
  const channel = v => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const parse = c => (c.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const paper = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  let least = 99, worst = "";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const e = node.parentElement, box = e.getBoundingClientRect();
    const unseen = ["TITLE", "DESC", "SCRIPT"].includes(e.tagName.toUpperCase());
    if (!node.data.trim() || !box.width || unseen) continue;
    const style = getComputedStyle(e), svg = e instanceof SVGElement;
    const a = light(parse(svg ? style.fill : style.color));
    const b = light(paper(svg ? e.closest("svg") : e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least) [least, worst] = [ratio, node.data.trim().slice(0, 40)];
  }
  const shut = [...document.querySelectorAll("details:not([open])")];
  shut.forEach(d => d.open = true);  // what is folded away is reached once it is opened
  const unmarked = [], reached = [...document.querySelectorAll("a[href], [tabindex='0']")];
  for (const e of reached) {
    e.focus();
    const style = getComputedStyle(e);
    const line = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
    if (document.activeElement !== e || line < 2)
      unmarked.push(e.outerHTML.slice(0, 60));
  }
  shut.forEach(d => d.open = false);
  const scrolls = e => e.scrollWidth > e.clientWidth + 1 &&
    ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const unreachable = [...document.querySelectorAll("*")].filter(e => scrolls(e) && e.tabIndex < 0)
    .map(e => e.outerHTML.slice(0, 60));
  scrollTo(0, 0);
  const bottom = s => document.querySelector(s)?.getBoundingClientRect().bottom ?? null;
  parent.document.body.dataset.found = JSON.stringify({
    width: innerWidth, overflow: document.documentElement.scrollWidth - innerWidth, least, worst,
    reached: reached.length, unmarked, unreachable,
    claim: bottom("#claim"), facts: bottom(".facts") ?? bottom(".claims"),
    paper: light(paper(document.body)),
    fetched: performance.getEntriesByType("resource").length,
  });
});
