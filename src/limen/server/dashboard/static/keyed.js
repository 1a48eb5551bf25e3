// A list that follows its items, and keeps the element of each as long as the item is there.

/** Show a list in an element, one child for each item: `make(item)` returns {node, see(item)}. A child stays as long as
its item does, so that a link in it keeps the focus. */
export function keyed(element, idOf, make) {
  let known = new Map();
  return (items) => {
    const next = new Map(items.map((item) => [idOf(item), known.get(idOf(item)) ?? make(item)]));
    for (const [id, { node }] of known) if (!next.has(id)) node.remove();
    known = next;
    items.forEach((item, n) => {
      const child = known.get(idOf(item));
      child.see(item);
      if (element.children[n] !== child.node) element.insertBefore(child.node, element.children[n] ?? null);
    });
  };
}
