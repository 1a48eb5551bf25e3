// What stands in the way of somebody on this page: a list of sentences, empty when nothing does.
() => {
  const found = [];
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const style = (element) => getComputedStyle(element);
  const named = (element) => {
    const text = (element.textContent ?? "").trim().replace(/\s+/g, " ").slice(0, 40);
    const classes = typeof element.className === "string" && element.className ? `.${element.className.replaceAll(" ", ".")}` : "";
    return `<${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ""}${classes}> “${text}”`;
  };
  const complain = (what, element) => found.push(element ? `${what}: ${named(element)}` : what);
  // A modal dialog is all that is there, while it is there.
  const modal = document.querySelector("dialog:modal");
  const isThere = (element) => (!modal || modal.contains(element)) && element.checkVisibility({ visibilityProperty: true });
  const isHidden = (element) => element.closest("[aria-hidden=true]") !== null;
  const there = (selector) => all(selector).filter((element) => isThere(element) && !isHidden(element));

  // Structure

  if (!document.documentElement.lang) complain("the page has no language");
  if (!document.title.trim() || document.title === "limen") complain("the page has no title of its own");
  if (!modal) {
    if (there("h1").length !== 1) complain(`there are ${there("h1").length} first headings`);
    if (there("main").length !== 1) complain(`there are ${there("main").length} main parts`);
    for (const nav of there("nav")) if (!nameOf(nav)) complain("a navigation without a name", nav);
  }
  let level = modal ? 1 : 0;
  for (const heading of there("h1, h2, h3, h4, h5, h6")) {
    const own = Number(heading.tagName[1]);
    if (own > level + 1) complain(`a heading of level ${own} after one of level ${level}`, heading);
    if (!heading.textContent.trim()) complain("an empty heading", heading);
    level = own;
  }
  const ids = all("[id]").map((element) => element.id);
  for (const id of new Set(ids)) if (ids.filter((each) => each === id).length > 1) complain(`the id ${id} is there twice`);
  for (const name of ["for", "aria-labelledby", "aria-describedby", "aria-controls", "list"]) {
    for (const element of all(`[${name}]`)) {
      for (const id of element.getAttribute(name).split(/\s+/).filter(Boolean)) {
        if (!document.getElementById(id)) complain(`${name} points to ${id}, which is not there`, element);
      }
    }
  }
  for (const element of all("[tabindex]")) if (element.tabIndex > 0) complain("a tabindex above 0", element);
  for (const item of all("li")) if (!item.closest("ul, ol, menu")) complain("an item of no list", item);
  for (const list of all("ul, ol")) {
    for (const child of list.children) if (child.tagName !== "LI") complain("something in a list that is no item", child);
  }
  for (const element of there("a *, button *")) {
    if (element.matches("a, button, input, select, textarea")) complain("something to press within something to press", element);
  }

  // Names

  function nameOf(element) {
    const by = element.getAttribute("aria-labelledby");
    if (by) return by.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
    return (element.getAttribute("aria-label") ?? "").trim();
  }
  function labelOf(field) {
    const labels = [...(field.labels ?? [])].filter((label) => label.textContent.trim() && label.checkVisibility());
    return nameOf(field) || labels.map((label) => label.textContent.trim()).join(" ");
  }
  for (const field of there("input:not([type=hidden]), select, textarea, meter, progress")) {
    if (!labelOf(field)) complain("a field without a label", field);
  }
  for (const element of there("button, a[href], summary, [role=button], [role=slider], [role=region], [role=group], dialog, fieldset")) {
    const inside = element.matches("button, a, summary, [role=button]") ? element.textContent.trim() : "";
    const legend = element.querySelector(":scope > legend")?.textContent.trim();
    const own = nameOf(element);
    if (!(own || inside || legend || (element.tagName === "FIELDSET" && element.title))) complain("no name", element);
    else if (own && inside && /^[\w\s]+$/.test(inside) && !own.toLowerCase().includes(inside.toLowerCase()) && !element.hasAttribute("aria-expanded")) {
      complain(`a name, “${own}”, without what is written on it`, element);
    }
  }
  for (const element of there("a:not([href])")) complain("a link that leads nowhere", element);
  for (const image of all("img").filter(isThere)) if (!image.hasAttribute("alt")) complain("an image without an alternative", image);
  for (const image of all("svg").filter(isThere)) {
    if (!isHidden(image) && !(image.getAttribute("role") === "img" && nameOf(image))) complain("a drawing without an alternative", image);
  }
  for (const table of there("table")) {
    if (!table.caption?.textContent.trim()) complain("a table without a caption", table);
    if (!table.querySelector("th")) complain("a table without headings", table);
    for (const head of table.querySelectorAll("th")) {
      if (!head.scope) complain("a heading of a table without a scope", head);
      if (!head.textContent.trim() && head.closest("thead")) complain("an empty heading of a table", head);
    }
  }
  const FOCUSABLE = "a[href], button:not(:disabled), input:not(:disabled), select:not(:disabled), textarea:not(:disabled), summary, [tabindex='0']";
  for (const element of all(`[aria-hidden=true] :is(${FOCUSABLE}), [aria-hidden=true]:is(${FOCUSABLE})`)) {
    if (isThere(element)) complain("hidden from those who listen, and not from the keyboard", element);
  }

  // Room

  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const wide = all("body *").filter((element) => isThere(element) && element.getBoundingClientRect().right > root.clientWidth + 1 && !scrolled(element));
    complain(`the page is ${root.scrollWidth} wide and the window ${root.clientWidth}: ${wide.slice(-1).map(named)}`);
  }
  function scrolled(element) {
    for (let each = element.parentElement; each; each = each.parentElement) {
      if (each !== document.body && each !== root && style(each).overflowX !== "visible") return true;
    }
    return false;
  }
  for (const element of there("body *")) {
    const { overflowX, overflowY } = style(element);
    const scrolls = (/auto|scroll/.test(overflowX) && element.scrollWidth > element.clientWidth + 1)
      || (/auto|scroll/.test(overflowY) && element.scrollHeight > element.clientHeight + 1);
    if (scrolls && !element.matches(FOCUSABLE) && !element.querySelector(FOCUSABLE)) complain("it scrolls, and not by the keyboard", element);
  }
  for (const element of there("button, input:not([type=hidden]), select, textarea, .button, header nav a")) {
    const { width, height } = element.getBoundingClientRect();
    const isSmall = element.matches("[type=checkbox], [type=radio]") ? width < 12 : element.matches(".link") ? false : width < 24 || height < 24;
    if (width && isSmall) complain(`only ${Math.round(width)} by ${Math.round(height)} to press`, element);
  }

  // Contrast, of what is really there

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  function colour(text) {
    if (!known.has(text)) {
      const plain = /^rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)$/.exec(text);
      if (plain) known.set(text, [Number(plain[1]), Number(plain[2]), Number(plain[3]), plain[4] === undefined ? 1 : Number(plain[4])]);
      else {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        known.set(text, [r, g, b, a / 255]);
      }
    }
    return known.get(text);
  }
  const over = (top, below) => [0, 1, 2].map((n) => top[n] * top[3] + below[n] * (1 - top[3])).concat(1);
  const behind = new Map();
  function background(element) {
    if (!element) return colour(getComputedStyle(root).colorScheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches ? "rgb(0, 0, 0)" : "rgb(255, 255, 255)");
    if (!behind.has(element)) {
      const own = colour(style(element).backgroundColor);
      // A dialog stands on nothing of what it is in.
      behind.set(element, own[3] >= 0.999 ? own : over(own, background(element.parentElement)));
    }
    return behind.get(element);
  }
  function light([r, g, b]) {
    const [x, y, z] = [r, g, b].map((one) => one / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  }
  function contrast(one, other) {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }
  function opacity(element) {
    let much = 1;
    for (let each = element; each; each = each.parentElement) much *= Number(style(each).opacity);
    return much;
  }
  function legible(element, text, given) {
    const { fontSize, fontWeight } = given;
    const ground = background(element);
    const ink = [...colour(element.namespaceURI.endsWith("svg") ? given.fill : given.color)];
    ink[3] *= opacity(element);
    const size = parseFloat(fontSize);
    const wanted = size >= 24 || (size >= 18.66 && Number(fontWeight) >= 700) ? 3 : 4.5;
    const much = contrast(over(ink, ground), ground);
    if (much < wanted) complain(`a contrast of ${much.toFixed(2)} instead of ${wanted} for “${text.trim().slice(0, 30)}”`, element);
  }
  const walk = document.createTreeWalker(modal ?? document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    const element = text.parentElement;
    if (!text.data.trim() || seen.has(element) || !isThere(element) || element.closest("button:disabled, noscript, option, .unseen, .skip, caption")) continue;
    seen.add(element);
    legible(element, text.data, style(element));
  }
  for (const field of there("input, textarea, select")) {
    if (field.disabled) continue;
    if (field.placeholder) legible(field, field.placeholder, getComputedStyle(field, "::placeholder"));
    if (field.matches("[type=checkbox], [type=radio], [type=file]")) continue;
    legible(field, field.value || "value", style(field));
    const edge = contrast(over(colour(style(field).borderTopColor), background(field)), background(field.parentElement));
    if (edge < 3) complain(`an edge with a contrast of ${edge.toFixed(2)} instead of 3`, field);
  }
  return [...new Set(found)];
}
