// Runs in a directory where npm has installed @huggingface/transformers: node SCRIPT EXPORTS TEXTS RESULT
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.cwd(), "index.js"));
const entry = require.resolve("@huggingface/transformers").replace(/\.cjs$/, ".mjs");
const { AutoModel, AutoTokenizer, env } = await import(pathToFileURL(entry));
const [, , exports, texts, result] = process.argv;
env.allowRemoteModels = false;
env.localModelPath = exports;
const groups = JSON.parse(readFileSync(texts, "utf-8"));
const said = (error) => `${error.name}: ${error.message}`.replace(/\s+/g, " ").slice(0, 200);
const found = {};

for (const name of readdirSync(exports).sort()) {
  found[name] = {};
  try {
    const tokenizer = await AutoTokenizer.from_pretrained(name);
    const model = await AutoModel.from_pretrained(name, { dtype: "fp32" });
    for (const [group, texts] of Object.entries(groups)) {
      try {
        const { sentence_embedding } = await model(await tokenizer(texts, { padding: true, truncation: true }));
        found[name][group] = sentence_embedding.tolist();
      } catch (error) {
        found[name][group] = said(error);
      }
    }
  } catch (error) {
    for (const group of Object.keys(groups)) found[name][group] = said(error);
  }
}
writeFileSync(result, JSON.stringify({ versions: { "@huggingface/transformers": env.version }, exports: found }));
