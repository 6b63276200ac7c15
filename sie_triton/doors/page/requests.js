// Make a request of what the form has: its path and body, and the same as a curl command.

export const MAX_LINES = 64;
export const MAX_BYTES = 100_000;
export const MAX_FILE_BYTES = 8_000_000;

// End of a body after a file's content. Its item is the last one, and the items are the last field.
const FILE_END = '"}}]}';

export class Invalid extends Error {}

export const lines = (text) => text.split("\n").filter((line) => line.trim());

const labelsIn = (text) => text.split(",").map((label) => label.trim()).filter(Boolean);

// Return the kind of input that a file is for a model, such as image.
export function kindOf(file, inputs) {
  const kind = ["image", "audio"].find((each) => file.type.startsWith(`${each}/`)) ?? "document";
  if (!inputs.includes(kind)) throw new Invalid(`${file.name}: the model does not take this kind of file.`);
  return kind;
}

// Return the request for the form's values: task, model, texts of its fields, and a file or null.
export function requestOf(given) {
  const { task, model, file } = given;
  const parts = BODIES[task](given);
  if (file) parts.items.push({ [kindOf(file, model.inputs)]: { data: "" } });
  check(task, parts, file);
  const path = `v1/${task}/${model.name.split("/").map(encodeURIComponent).join("/")}`;
  return { task, path, body: JSON.stringify(parts), file, names: namesOf(parts.items, file) };
}

const textItems = (texts) => texts.map((text) => ({ text }));

const ROLES = { "": {}, query: { is_query: true }, none: { instruction: "" } };

// Return an object with the field `name`, or without it if its value has no fields.
const unlessEmpty = (name, value) => (Object.keys(value).length ? { [name]: value } : {});

const loraOf = ({ lora }) => (lora.trim() ? { lora: lora.trim() } : {});

const optionsOf = (given) => ({
  ...ROLES[given.role],
  ...(given.dimensions ? { dimensions: Number(given.dimensions) } : {}),
  ...loraOf(given),
});

const BODIES = {
  encode: (given) => ({
    ...unlessEmpty("params", {
      ...(given.output ? { output_types: [given.output] } : {}),
      ...unlessEmpty("options", optionsOf(given)),
    }),
    items: textItems(lines(given.texts)),
  }),
  score: (given) => ({
    query: { text: given.query },
    ...unlessEmpty("options", loraOf(given)),
    items: textItems(lines(given.documents)),
  }),
  extract: (given) => ({
    ...unlessEmpty("params", {
      ...(labelsIn(given.labels).length ? { labels: labelsIn(given.labels) } : {}),
      ...unlessEmpty("options", loraOf(given)),
    }),
    items: textItems(given.text.trim() ? [given.text] : []),
  }),
};

function check(task, { query, items, params }, file) {
  if (query && !query.text.trim()) throw new Invalid("Query: write what to compare the documents with.");
  if (!items.length) throw new Invalid(`There is nothing to ${task}: write a text, or choose a file.`);
  if (items.length > MAX_LINES) {
    throw new Invalid(`There are ${items.length} lines: the playground sends at most ${MAX_LINES}.`);
  }
  const size = new TextEncoder().encode(JSON.stringify({ query, items, params })).length;
  if (size > MAX_BYTES) {
    throw new Invalid(`The text takes ${Math.ceil(size / 1000)} kB: the playground sends at most ${MAX_BYTES / 1000} kB.`);
  }
  if (file && file.size > MAX_FILE_BYTES) {
    throw new Invalid(`${file.name}: the playground sends files of at most ${MAX_FILE_BYTES / 1e6} MB.`);
  }
}

const namesOf = (items, file) => items.map((item) => item.text ?? file.name);

// Return the body as it is sent, with the file's content as a data: URL, which the server reads as it reads base64.
export async function bodyOf(request) {
  if (!request.file) return request.body;
  const [before, after] = aroundFile(request.body);
  return before + (await dataUrl(request.file)) + after;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Invalid(`${file.name}: the browser cannot read this file.`));
    reader.readAsDataURL(file);
  });
}

const aroundFile = (body) => [body.slice(0, -FILE_END.length), FILE_END];

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// Return the command for a POSIX shell. It names the token's variable, never the token.
export function curlOf(request, origin, hasToken) {
  const options = [
    `curl -sS ${quoted(`${origin}/${request.path}`)}`,
    "-H 'Content-Type: application/json'",
    ...(hasToken ? ['-H "Authorization: Bearer $SIE_TOKEN"'] : []),
    `-d ${request.file ? "@-" : quoted(request.body)}`,
  ].join(" \\\n  ");
  return request.file ? `${printed(request)} |\n${options}` : options;
}

// Return a command that writes the body: a file's base64 is too long for an argument.
function printed({ body, file }) {
  const [before, after] = aroundFile(body).map((part) => `printf %s ${quoted(part)}`);
  return `{ ${before}; base64 < ${quoted(file.name)} | tr -d '\\n'; ${after}; }`;
}
