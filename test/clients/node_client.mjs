// Reads and writes through a gateway with the official client for JavaScript.
//
//     KUBECONFIG=gateway.kubeconfig node node_client.mjs NAMESPACE
import assert from 'node:assert/strict';
import * as k8s from '@kubernetes/client-node';

const namespace = process.argv[2];
const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);

const name = (n) => `node-${n}`;
const labels = { from: 'node' };
const create = (n) =>
  core.createNamespacedConfigMap({ namespace, body: { metadata: { name: name(n), labels }, data: { n: String(n) } } });

await create(0);
const list = () => core.listNamespacedConfigMap({ namespace, labelSelector: 'from=node' });
const informer = k8s.makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`, list, 'from=node');
const seen = [];
const waiting = [];
const note = (type) => (o) => {
  seen.push(`${type} ${o.metadata.name}`);
  waiting.splice(0).forEach((wake) => wake());
};
informer.on('add', note('add'));
informer.on('update', note('update'));
informer.on('delete', note('delete'));
let stopping = false;
informer.on('error', (err) => {
  if (!stopping) throw err;
});
const until = async (what) => {
  const late = setTimeout(() => {
    throw new Error(`no ${what} within 30 s: ${seen.join(', ')}`);
  }, 30_000);
  while (!seen.includes(what)) await new Promise((wake) => waiting.push(wake));
  clearTimeout(late);
};
await informer.start();
await until('add node-0');
await create(1);
await until('add node-1');
await core.deleteNamespacedConfigMap({ namespace, name: name(0) });
await until('delete node-0');
stopping = true;
await informer.stop();

const left = await list();
assert.deepEqual(left.items.map((o) => o.metadata.name), ['node-1']);
await assert.rejects(core.readNamespacedConfigMap({ namespace, name: 'nothing' }), (err) => err.code === 404);
console.log('node: ok');
process.exit(0);
