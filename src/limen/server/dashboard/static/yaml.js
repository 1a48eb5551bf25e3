// Rules as YAML, written so that people like to read them. Reading is the service's: it knows what its rules mean.
//
// Without quotes only whole numbers, true, false and null are more than text there, so only what looks like those, or
// like YAML's own signs, is quoted.

const WIDTH = 88;
const WHOLE_NUMBER = /^-?(?:0|[1-9][0-9]{0,17})$/;
const WORDS = ["true", "false", "null", "~", ""];
const UNREADABLE = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]/;

/** Write data so that it reads well, and is read back the same. */
export function write(data) {
  if (isMapping(data) && Object.keys(data).length) return mappingLines(data).join("\n") + "\n";
  if (Array.isArray(data) && data.length) return listLines(data).join("\n") + "\n";
  return `${inline(data, false)}\n`;
}

/** Write a whole set of rules, with an empty line between rules. */
export function writeRules(document) {
  const lines = [];
  for (const [key, value] of Object.entries(document)) {
    if (!Array.isArray(value) || !value.length) {
      lines.push(...mappingLines({ [key]: value }));
      continue;
    }
    if (lines.length) lines.push("");
    lines.push(`${scalar(key, false)}:`);
    value.forEach((each, n) => lines.push(...(n ? [""] : []), ...listLines([each]).map((line) => `  ${line}`)));
  }
  return `${lines.join("\n")}\n`;
}

const isMapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isNested = (value) => value !== null && typeof value === "object" && Object.keys(value).length > 0;

function mappingLines(data) {
  return Object.entries(data).flatMap(([key, value]) => {
    const name = scalar(key, false);
    if (!isNested(value) || fits(value, name.length)) return [`${name}: ${inline(value, false)}`];
    const inner = isMapping(value) ? mappingLines(value) : listLines(value);
    return [`${name}:`, ...inner.map((line) => `  ${line}`)];
  });
}

function listLines(list) {
  return list.flatMap((value) => {
    if (!isNested(value) || (Array.isArray(value) && fits(value, 2))) return [`- ${inline(value, false)}`];
    const inner = isMapping(value) ? mappingLines(value) : listLines(value);
    return inner.map((line, n) => (n ? `  ${line}` : `- ${line}`));
  });
}

/** Whether a value may stand in one line: short, and of one level or of small things. */
function fits(value, taken) {
  const items = Object.values(value);
  if (Array.isArray(value) && items.some(isMapping)) return false;
  if (items.some((each) => isNested(each) && Object.values(each).some(isNested))) return false;
  if (items.length > 8) return false;
  return taken + inline(value, false).length <= WIDTH;
}

function inline(value, inFlow) {
  if (Array.isArray(value)) return `[${value.map((each) => inline(each, true)).join(", ")}]`;
  if (isMapping(value)) {
    return `{${Object.entries(value).map(([key, each]) => `${scalar(key, true)}: ${inline(each, true)}`).join(", ")}}`;
  }
  return typeof value === "string" ? scalar(value, inFlow) : String(value);
}

const PLAIN = /^[\p{L}\p{N}/._$^+(<=;~\\-](?:.*\S)?$/u;

function scalar(text, inFlow) {
  const needsQuotes = WORDS.includes(text) || WHOLE_NUMBER.test(text) || !PLAIN.test(text) || UNREADABLE.test(text)
    || /[\t\n]|:(\s|$)|\s#|^-(\s|$)|^(---|\.\.\.)/.test(text) || /[\ud800-\udfff\u{e000}-\u{f8ff}]/u.test(text)
    || (inFlow && /[,[\]{}:?]/.test(text));
  return needsQuotes ? quoted(text) : text;
}

function quoted(text) {
  if (text.includes("\\") && !/[\n\t']/.test(text) && !UNREADABLE.test(text)) return `'${text}'`;
  const unseen = new RegExp(UNREADABLE.source, "g");
  return JSON.stringify(text).replace(unseen, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Put another value into one field of a rule's text, and leave the other lines as they are. `rule` is what the text
says; a value that is undefined takes the field away. */
export function withField(text, rule, field, value) {
  const lines = text.replace(/\r\n?/g, "\n").trimEnd().split("\n");
  const isPlain = lines.every((line) => /^([A-Za-z_]\w*:( |$)|[ \t]|#|- |-$|$)/.test(line)) && !/^\s*[-{]/.test(text.trimStart());
  const from = lines.findIndex((line) => line === `${field}:` || line.startsWith(`${field}: `));
  if (!isPlain || (from < 0) === field in rule) {
    const { [field]: _, ...others } = rule;
    return write(value === undefined ? others : { ...rule, [field]: value });
  }
  const fresh = value === undefined ? [] : mappingLines({ [field]: value });
  if (from < 0) {
    lines.push(...fresh);
  } else {
    let to = from + 1;
    while (to < lines.length && /^([ \t]|-|$)/.test(lines[to])) to += 1;
    while (to > from + 1 && lines[to - 1] === "") to -= 1;
    lines.splice(from, to - from, ...fresh);
  }
  return `${lines.join("\n").replace(/^\n+/, "")}\n`;
}
