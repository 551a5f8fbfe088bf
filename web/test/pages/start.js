// @ts-check
// The smallest page that begins a sign-in and takes what comes of it, for the browser tests.
import { begin, resume } from '../../connect/start.js';

/** @param {string} id */
const value = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id)).value;

/** @param {import('../../connect/start.js').Flow} flow */
function follow(flow) {
  const row = document.createElement('section');
  const say = (/** @type {string} */ name, /** @type {string} */ text) => {
    const p = document.createElement('p');
    p.className = name;
    p.textContent = text;
    row.append(p);
  };
  const press = (/** @type {string} */ name, /** @type {() => unknown} */ run) => {
    const b = document.createElement('button');
    b.className = name;
    b.type = 'button';
    b.textContent = name;
    b.addEventListener('click', run);
    row.append(b);
  };
  row.className = 'flow';
  say('number', flow.number);
  say('url', flow.url);
  say('blocked', String(flow.blocked));
  press('cancel', () => flow.cancel());
  press('here', () => flow.followHere());
  press('look', () => flow.look());
  const code = document.createElement('input');
  code.ariaLabel = 'Sign-in code';
  row.append(code);
  press('enter', async () => say('entered', String(await flow.enter(code.value))));
  flow.outcome.then((o) => say('outcome', JSON.stringify(o)));
  document.getElementById('flows')?.append(row);
}

document.getElementById('begin')?.addEventListener('click', async () => {
  follow(await begin({ broker: 'https://broker.test', service: value('service'), access: /** @type {'read' | 'write'} */ (value('access')) }));
});
for (const flow of await resume()) follow(flow);
