// Recomputes the digests and keys of a golden file in another language: canonical JSON by RFC 8785, then SHA-256,
// of which a key has the first 16 bytes.
// Usage: node digest.mjs identity.golden; prints what differs and exits with 1, or prints how many agree.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const fields = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${fields.join(",")}}`;
}

const lines = readFileSync(process.argv[2], "utf8").split("\n");
const texts = lines.filter((line) => line.startsWith("  {")).map((line) => line.trim());
const digests = lines.filter((line) => /^  [a-z]+[0-9]+:[0-9a-f]+$/.test(line)).map((line) => line.trim().split(":"));
const wrong = texts.filter((text, at) => {
  const bytes = canonical(JSON.parse(text));
  const digest = createHash("sha256").update(bytes, "utf8").digest("hex");
  const [prefix, expected] = digests[at];
  return bytes !== text || (prefix === "tt1" ? digest : digest.slice(0, 32)) !== expected;
});
console.log(wrong.length ? `differ:\n${wrong.join("\n")}` : `${texts.length} digests agree`);
process.exit(wrong.length || texts.length !== digests.length ? 1 : 0);
