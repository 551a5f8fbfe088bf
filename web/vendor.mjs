// @ts-check
// Writes web/vendor/: pinned copies of what the client imports from npm, with relative imports,
// since a strict CSP forbids import maps and nothing is built. "node web/vendor.mjs --check" writes
// nothing and fails where the folder is not what the script would write.
//
// Only the modules that are reached are copied, unchanged but for the specifiers of their imports;
// an import from a package's index leads to the module itself that has the name.
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const modules = join(here, '..', 'node_modules');

/** What the client imports: file of web/vendor/ → package and names. */
const entries = {
  'hpke-core.js': { from: '@hpke/core', names: ['Aes256Gcm', 'CipherSuite', 'DhkemP256HkdfSha256', 'HkdfSha256'] },
};

/** @type {Map<string, string>} path below web/vendor/ → text */
const out = new Map();
/** @type {Map<string, {version: string, license: string}>} */
const packages = new Map();

/** Comments hold examples with imports of their own. @param {string} source */
const bare = (source) => source.replace(/\/\*[\s\S]*?\*\//g, (c) => c.replace(/[^\n]/g, ' '));

/**
 * The module of a package, named from its esm folder, that has an export.
 * @param {string} pkg @param {string} name @param {string} [file]
 * @returns {string | undefined}
 */
function moduleOf(pkg, name, file = 'mod.js') {
  const source = bare(read(pkg, file));
  for (const m of source.matchAll(/export\s*\{([^}]*)\}\s*from\s*"(\.[^"]+)"/g)) {
    if (names(m[1] ?? '').includes(name)) return moduleOf(pkg, name, posix.join(posix.dirname(file), m[2] ?? ''));
  }
  for (const m of source.matchAll(/export\s*\*\s*from\s*"(\.[^"]+)"/g)) {
    const found = moduleOf(pkg, name, posix.join(posix.dirname(file), m[1] ?? ''));
    if (found) return found;
  }
  return new RegExp(`export (?:async )?(?:class|const|let|var|function) ${name}\\b`).test(source) ? file : undefined;
}

/** @param {string} list what stands between braces */
function names(list) {
  return list.split(',').map((s) => s.trim()).filter(Boolean);
}

/** @param {string} pkg @param {string} file */
const read = (pkg, file) => readFileSync(join(modules, pkg, 'esm', file), 'utf8');

/** @param {string} pkg */
const folder = (pkg) => pkg.replace('@', '').replace('/', '-');

/** Copies a module and what it imports. @param {string} pkg @param {string} file */
function copy(pkg, file) {
  const at = posix.join(folder(pkg), file);
  if (out.has(at)) return;
  out.set(at, '');
  if (!packages.has(pkg)) {
    const { version, license } = JSON.parse(readFileSync(join(modules, pkg, 'package.json'), 'utf8'));
    packages.set(pkg, { version, license });
    out.set(posix.join(folder(pkg), 'LICENSE'), readFileSync(join(modules, pkg, 'LICENSE'), 'utf8'));
  }
  const source = read(pkg, file);
  const plain = bare(source);
  let text = '';
  let end = 0;
  for (const m of plain.matchAll(/(import|export)\s*(?:\{([^}]*)\}|\*(?:\s*as\s+\w+)?)\s*from\s*"([^"]+)"/g)) {
    const [whole, verb, list, spec] = /** @type {[string, string, string | undefined, string]} */ (/** @type {unknown} */ (m));
    text += source.slice(end, m.index);
    end = m.index + whole.length;
    if (spec.startsWith('.')) {
      copy(pkg, posix.join(posix.dirname(file), spec));
      text += source.slice(m.index, end);
      continue;
    }
    if (list === undefined) throw new Error(`${pkg}/${file} imports all of ${spec}`);
    text += reached(spec, names(list)).map(([to, ns]) => `${verb} { ${ns.join(', ')} } from "${relative(at, posix.join(folder(spec), to))}"`).join(';\n');
  }
  text += source.slice(end);
  const left = bare(text).match(/(?:from|import)\s*"[^".][^"]*"/);
  if (left) throw new Error(`${pkg}/${file} still has ${left[0]}`);
  out.set(at, text);
}

/**
 * The modules that have the names, each copied.
 * @param {string} pkg @param {string[]} list
 * @returns {[string, string[]][]}
 */
function reached(pkg, list) {
  /** @type {Map<string, string[]>} */
  const by = new Map();
  for (const name of list) {
    const file = moduleOf(pkg, name);
    if (!file) throw new Error(`${pkg} has no ${name}`);
    by.set(file, [...(by.get(file) ?? []), name]);
    copy(pkg, file);
  }
  return [...by];
}

/** @param {string} from @param {string} to */
function relative(from, to) {
  const p = posix.relative(posix.dirname(from), to);
  return p.startsWith('.') ? p : './' + p;
}

for (const [file, { from, names }] of Object.entries(entries)) {
  const lines = reached(from, names).map(([to, ns]) => `export { ${ns.join(', ')} } from './${posix.join(folder(from), to)}';`);
  out.set(file, `// Written by web/vendor.mjs.\n${lines.join('\n')}\n`);
  out.set(file.replace('.js', '.d.ts'), `export { ${names.join(', ')} } from '${from}';\n`);
}
const files = [...out].sort(([a], [b]) => (a < b ? -1 : 1));
const list = files.map(([name, text]) => `${createHash('sha256').update(text).digest('hex')}  ${name}`);
const versions = [...packages].map(([name, { version, license }]) => `| \`${name}\` | ${version} | ${license} |`).sort();
files.push(['README.md', `# Copies of what the client imports

Written by \`node web/vendor.mjs\` from \`node_modules\`; a test writes it again and compares. Do not edit.

| package | version | licence |
|---|---|---|
${versions.join('\n')}

SHA-256 of each file:

\`\`\`
${list.join('\n')}
\`\`\`
`]);

const dir = join(here, 'vendor');
if (process.argv.includes('--check')) {
  const wrong = files.filter(([name, text]) => {
    try {
      return readFileSync(join(dir, name), 'utf8') !== text;
    } catch {
      return true;
    }
  }).map(([name]) => name);
  const extra = readdirSync(dir, { recursive: true, withFileTypes: true }).filter((e) => e.isFile())
    .map((e) => posix.relative(dir, posix.join(e.parentPath ?? e.path, e.name))).filter((name) => !files.some(([n]) => n === name));
  if (wrong.length + extra.length > 0) {
    console.error(`web/vendor/ is not what web/vendor.mjs writes: ${[...wrong, ...extra].join(', ')}`);
    process.exit(1);
  }
  console.log(`web/vendor/: ${files.length} files as written`);
} else {
  rmSync(dir, { recursive: true, force: true });
  for (const [name, text] of files) {
    mkdirSync(dirname(join(dir, name)), { recursive: true });
    writeFileSync(join(dir, name), text);
  }
  console.log(`web/vendor/: ${files.length} files, ${files.reduce((n, [, t]) => n + t.length, 0)} bytes`);
}
