// Runs in a directory where npm has installed @huggingface/transformers: node SCRIPT EXPORTS TEXTS RESULTS NAME …, see embedding.py
import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.cwd(), "index.js"));
const entry = require.resolve("@huggingface/transformers").replace(/\.cjs$/, ".mjs");
const { AutoModel, AutoTokenizer, env } = await import(pathToFileURL(entry));
const [, , exports, texts, results, ...names] = process.argv;
env.allowRemoteModels = false;
env.localModelPath = exports;
const groups = JSON.parse(readFileSync(texts, "utf-8"));
const said = (error) => `${error.name}: ${error.message}`.replace(/\s+/g, " ").slice(0, 200);

for (const name of names) {
  const vectors = {};
  try {
    const tokenizer = await AutoTokenizer.from_pretrained(name);
    const model = await AutoModel.from_pretrained(name, { dtype: "fp32" });
    for (const [group, texts] of Object.entries(groups)) {
      try {
        const { sentence_embedding } = await model(await tokenizer(texts, { padding: true, truncation: true }));
        vectors[group] = sentence_embedding.tolist();
      } catch (error) {
        vectors[group] = said(error);
      }
    }
    await model.dispose();
  } catch (error) {
    for (const group of Object.keys(groups)) vectors[group] = said(error);
  }
  const partial = join(results, `${name}.partial`);
  writeFileSync(partial, JSON.stringify({ versions: { "@huggingface/transformers": env.version }, vectors }));
  renameSync(partial, join(results, `${name}.json`));
}
