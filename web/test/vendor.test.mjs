// web/vendor/ is what web/vendor.mjs makes of node_modules, and nothing leads out of it.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const web = join(dirname(fileURLToPath(import.meta.url)), '..');

test('the copies are as the script writes them', () => {
  execFileSync(process.execPath, [join(web, 'vendor.mjs'), '--check'], { stdio: 'pipe' });
});

test('every import of the client leads to a file beside it', () => {
  let n = 0;
  for (const dir of ['lib', 'connect', 'vendor']) {
    for (const name of readdirSync(join(web, dir), { recursive: true })) {
      if (!name.endsWith('.js')) continue;
      const file = join(web, dir, name);
      const source = readFileSync(file, 'utf8').replace(/\/\*[\s\S]*?\*\//g, '');
      for (const [, spec] of source.matchAll(/^(?:import|export)\b[^'"`;]*?from\s*['"]([^'"]+)['"]/gm)) {
        assert.match(spec, /^\.\.?\//, `${file} imports ${spec}`);
        assert.ok(existsSync(resolve(dirname(file), spec)), `${file} imports ${spec}, which is not there`);
        n++;
      }
    }
  }
  assert.ok(n > 20, `${n} imports`);
});

test('pages hold no script or style of their own', () => {
  for (const name of ['connect/done/index.html']) {
    const page = readFileSync(join(web, name), 'utf8');
    assert.match(page, /Content-Security-Policy" content="default-src 'none'; script-src 'self'; style-src 'self'/);
    assert.doesNotMatch(page, /<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:|https?:/);
  }
});
