// Runs tensors, a Keras layers model and a SavedModel with @tensorflow/tfjs-node. Results are compared with
// those of tfjs's own backend in JavaScript, or with TensorFlow's in expected.json.
const fs = require('fs');
const path = require('path');
const tf = require('@tensorflow/tfjs-node');

let failures = 0;
async function check(name, body) {
  try {
    await body();
    console.log(`ok     ${name}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED ${name}\n${error.stack}`);
  }
}

function near(got, want, tolerance = 1e-4) {
  if (got.length !== want.length) throw new Error(`${got.length} numbers instead of ${want.length}`);
  for (let i = 0; i < got.length; i++) {
    const gap = Math.abs(got[i] - want[i]);
    if (!(gap <= tolerance * Math.max(1, Math.abs(want[i])))) {
      throw new Error(`number ${i}: ${got[i]} instead of ${want[i]}`);
    }
  }
}

// Runs `body` on both backends and compares the numbers.
async function onBoth(body, tolerance) {
  const results = [];
  for (const backend of ['cpu', 'tensorflow']) {
    await tf.setBackend(backend);
    results.push(await body());
  }
  near(results[1], results[0], tolerance);
}

function numbers(n, scale = 1) {
  return Float32Array.from({length: n}, (_, i) => scale * Math.sin(i * 1.7));
}

async function tensors() {
  const image = () => tf.tensor4d(numbers(2 * 9 * 9 * 3), [2, 9, 9, 3]);
  const filter = () => tf.tensor4d(numbers(3 * 3 * 3 * 4, 0.3), [3, 3, 3, 4]);
  const cases = {
    matMul: () => tf.matMul(tf.tensor2d(numbers(12), [3, 4]), tf.tensor2d(numbers(20), [4, 5])),
    conv2d: () => tf.conv2d(image(), filter(), 2, 'same'),
    depthwise: () => tf.depthwiseConv2d(image(), filter(), 1, 'valid'),
    maxPool: () => tf.maxPool(image(), 3, 2, 'same'),
    softmax: () => tf.softmax(tf.tensor2d(numbers(12, 3), [3, 4])),
    sum: () => tf.sum(image(), [1, 2]),
    gather: () => tf.gather(tf.tensor2d(numbers(12), [4, 3]), tf.tensor1d([2, 0, 3], 'int32')),
    slice: () => tf.slice(image(), [0, 1, 2, 0], [2, 3, 4, 2]),
    concat: () => tf.concat([image(), image()], 3),
    oneHot: () => tf.oneHot(tf.tensor1d([0, 2, 1], 'int32'), 4),
    topk: () => tf.topk(tf.tensor2d(numbers(12), [3, 4]), 2).values,
    cumsum: () => tf.cumsum(tf.tensor2d(numbers(12), [3, 4]), 1),
    resize: () => tf.image.resizeBilinear(image(), [5, 13]),
    complex: () => tf.real(tf.spectral.fft(tf.complex(tf.tensor1d(numbers(8)), tf.tensor1d(numbers(8, 2))))),
    argMax: () => tf.argMax(tf.tensor2d(numbers(12), [3, 4]), 1),
    gradient: () => tf.grad(x => tf.sum(tf.tanh(tf.matMul(x, x))))(tf.tensor2d(numbers(9), [3, 3])),
  };
  for (const [name, body] of Object.entries(cases)) {
    await check(`op ${name}`, () => onBoth(async () => (await body()).data()));
  }
  await check('strings', async () => {
    const words = ['a', 'a somewhat longer string than fits', '', 'ü'];
    const got = await tf.concat([tf.tensor1d(words), tf.tensor1d(words)]).data();
    if (got.join('|') !== [...words, ...words].join('|')) throw new Error(got.join('|'));
  });
  await check('images', async () => {
    const pixels = Int32Array.from({length: 4 * 5 * 3}, (_, i) => (i * 37) % 256);
    const png = await tf.node.encodePng(tf.tensor3d(pixels, [4, 5, 3], 'int32'));
    near(await tf.node.decodePng(png, 3).data(), pixels, 0);
  });
  await check('errors', async () => {
    try {
      tf.backend().executeSingleOutput('NoSuchOp', [], []);
    } catch (error) {
      if (/NoSuchOp/.test(error.message)) return;
      throw error;
    }
    throw new Error('an unknown op runs');
  });
}

function network() {
  const model = tf.sequential();
  model.add(tf.layers.conv2d({
    inputShape: [8, 8, 1], filters: 4, kernelSize: 3, activation: 'relu', padding: 'same',
  }));
  model.add(tf.layers.batchNormalization());
  model.add(tf.layers.maxPooling2d({poolSize: 2}));
  model.add(tf.layers.flatten());
  model.add(tf.layers.dense({units: 10, activation: 'tanh'}));
  model.add(tf.layers.dense({units: 3, activation: 'softmax'}));
  model.setWeights(model.getWeights().map(w => tf.tensor(numbers(w.size, 0.2), w.shape).abs()));
  return model;
}

async function layers() {
  const n = 24;
  const xs = () => tf.tensor4d(numbers(n * 64), [n, 8, 8, 1]);
  const ys = () => tf.oneHot(tf.tensor1d(Array.from({length: n}, (_, i) => i % 3), 'int32'), 3);
  await check('layers model: predict', () => onBoth(() => network().predict(xs()).data()));
  await check('layers model: fit', () => onBoth(async () => {
    const model = network();
    model.compile({optimizer: tf.train.adam(0.01), loss: 'categoricalCrossentropy', metrics: ['accuracy']});
    const options = {epochs: 4, batchSize: 8, shuffle: false, verbose: 0};
    const history = await model.fit(xs(), ys(), options);
    return [...history.history.loss, ...(await model.predict(xs()).data())];
  }, 5e-3));
  await check('layers model: save and load', async () => {
    await tf.setBackend('tensorflow');
    const folder = fs.mkdtempSync(path.join(require('os').tmpdir(), 'tfjs-'));
    const model = network();
    await model.save(`file://${folder}`);
    const again = await tf.loadLayersModel(`file://${folder}/model.json`);
    near(await again.predict(xs()).data(), await model.predict(xs()).data());
    fs.rmSync(folder, {recursive: true});
  });
  await check('layers model: LSTM', () => onBoth(() => {
    const model = tf.sequential();
    model.add(tf.layers.lstm({units: 5, inputShape: [6, 3]}));
    model.setWeights(model.getWeights().map(w => tf.tensor(numbers(w.size, 0.3), w.shape)));
    return model.predict(tf.tensor3d(numbers(36), [2, 6, 3])).data();
  }));
}

async function savedModel(folder) {
  await tf.setBackend('tensorflow');
  await check(`SavedModel ${path.basename(folder)}`, async () => {
    const signatures = await tf.node.getMetaGraphsFromSavedModel(folder);
    if (signatures.length === 0) throw new Error('no MetaGraphs');
    const model = await tf.node.loadSavedModel(folder, ['serve'], 'serving_default');
    const cases = JSON.parse(fs.readFileSync(path.join(folder, 'expected.json'), 'utf8'));
    for (const {inputs, outputs, tol} of cases.filter(c => c.signature === 'serving_default')) {
      const result = model.predict(tf.tensor(inputs.features.data, inputs.features.shape));
      near(await result.data(), outputs.output_0.data, tol);
    }
    model.dispose();
  });
}

(async () => {
  await tf.ready();
  console.log(`tfjs-node ${tf.version['tfjs-node']}, backend ${tf.getBackend()}`);
  if (tf.getBackend() !== 'tensorflow') throw new Error('the native backend is not loaded');
  await tensors();
  await layers();
  await savedModel(process.argv[2]);
  process.exitCode = failures ? 1 : 0;
})();
