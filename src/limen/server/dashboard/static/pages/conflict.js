// Two editors at once: the second one sees both texts, and chooses.

import { h } from "../dom.js";
import { changesBetween, changesNode, isSame } from "../ruleset.js";
import { write } from "../yaml.js";

/** Return what is shown. `theirs` is the set as it is now, `other` their form of the rule or null, `original` the rule
as one found it, null for a new one. `onkeep`, `ontake` and `onedit` are what the buttons do. */
export function conflictNode({ mine, theirs, other, original, onkeep, ontake, onedit }) {
  const isUntouched = original !== null && other !== null && isSame(other, original);
  const isBoth = other !== null && !isUntouched;
  const text = (rule) => h("pre", { tabindex: "0" }, rule ? write(rule) : "(there is none)");
  return h("section", { class: "card", role: "alert" },
    h("h2", { tabindex: "-1" }, `${theirs.author ?? "Somebody"} saved version ${theirs.latest} while you were writing`),
    h("p", null, `${happened(original, other, isUntouched)} Nothing of yours was saved, and nothing is lost.`),
    theirs.comment ? h("p", null, `Their comment: ${theirs.comment}`) : null,
    h("div", { class: "grid" },
      h("div", { class: "stack" }, h("h3", null, "Yours"), text(mine)),
      h("div", { class: "stack" }, h("h3", null, "Theirs"), text(other))),
    isBoth ? [h("h3", null, "What yours would change in theirs"), changesNode(changesBetween({ rules: [{ ...other, name: mine.name }] }, { rules: [mine] }))] : null,
    h("div", { class: "row" },
      h("button", { type: "button", class: "main", onclick: onkeep }, isBoth ? "Save mine in place of theirs" : "Save mine into their version"),
      h("button", { type: "button", disabled: other === null, onclick: ontake }, "Take theirs"),
      h("button", { type: "button", class: "quiet", onclick: onedit }, "Go on with mine")));
}

function happened(original, other, isUntouched) {
  if (isUntouched) return "They did not change this rule.";
  if (original === null) return other ? "There is a rule of this name now." : "They did not make such a rule.";
  return other ? "They changed this rule too." : "They deleted this rule.";
}
