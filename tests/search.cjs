// node search.cjs SITE WORDS...: the pages that the site's own search worker answers, best first.
const fs = require("fs");
const path = require("path");

const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find((name) => /^search.*\.js$/.test(name));
const read = (file) => fs.readFileSync(file, "utf8");

let handle, answered;
globalThis.self = globalThis;
globalThis.addEventListener = (_, handler) => { handle = handler; };
globalThis.postMessage = (message) => answered(message);
(0, eval)(read(path.join(folder, worker)));

const ask = (type, data) => new Promise((resolve) => {
  answered = (message) => resolve(message.data);
  handle({ data: { type, data } });
});

(async () => {
  const index = JSON.parse(read(path.join(site, "search/search_index.json")));
  await ask(0, { ...index, options: {} });
  const pages = {};
  for (const query of queries) {
    const { items } = await ask(2, query);
    pages[query] = items.map(([best]) => best.location.split("#")[0]);
  }
  console.log(JSON.stringify(pages));
})();
