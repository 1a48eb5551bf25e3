// Elements without markup: nothing that comes from elsewhere is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: h("p", {class: "note", onclick: act}, "text", otherElement, [more]). */
export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for a part of an SVG. */
export function s(tag, properties, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) set(element, name, value);
  element.append(...flat(children));
  return element;
}

/** Set one property as `h` does; null and false take an attribute away. */
export function set(element, name, value) {
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "value" || name === "checked" || name === "indeterminate") element[name] = value;
  else if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
}

/** Put other children into an element. */
export function fill(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

/** Say another text; nothing is touched when it is the same, so nothing is read aloud again. */
export function say(element, text) {
  const told = String(text);
  if (element.textContent !== told) element.textContent = told;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

let lastId = 0;

/** Return an id that no other element has, to tie a label to its field. */
export function freshId(word = "x") {
  lastId += 1;
  return `${word}-${lastId}`;
}
